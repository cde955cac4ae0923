"""The API's side of the sockets: starts the engines' processes, sends them requests, hands tokens to their streams.

replicas     all engines as one: what the HTTP side talks to
routing      which of them answers a request
client       requests and commands to a process, its frames, and what happens when it dies
process      starting a process, its threads, GPUs and memory, and how it ended
in_flight    the requests that the engine has: each step's tokens to their mailboxes, their times to the metrics;
             how many may queue; commands that are not answered
generation   the answers to one request, token by token, for the one coroutine that awaits them
"""
