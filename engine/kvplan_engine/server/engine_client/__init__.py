"""The API's side of the socket: starts the engine's process, sends it requests, hands its tokens to their streams.

client       requests and commands to the process, its frames, and what happens when it dies
process      starting the process, and how it ended
in_flight    the requests that the engine has: each step's tokens to their mailboxes, their times to the metrics
commands     those that are not answered
generation   the answers to one request, token by token, for the one coroutine that awaits them
admission    how many requests may queue
"""
