"""Servers forked from one process that has imported their engine already, so that a start does not import it again.

fork_server  that process: imports, waits, and forks a keeper with a server below it for each order
spares       processes that a server would spawn, forked from it before it has done anything

``fork_server`` and ``spares`` run in the engine's own Python: standard library only, and found by their path.
"""
