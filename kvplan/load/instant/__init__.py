"""A server that answers at once, to learn how fast the client is: what a load can read at most on this machine.

server    the server, a process of its own: ``python -m kvplan.load.instant.server``
"""
