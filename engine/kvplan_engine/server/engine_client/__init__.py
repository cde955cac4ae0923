"""The API's side of the socket: starts the engine's process, sends it requests, hands its tokens to their streams.

client       starting the process, frames to generations, commands, and what happens when the process dies
generation   the answers to one request, token by token, for the one coroutine that awaits them
admission    how many requests may queue
"""
