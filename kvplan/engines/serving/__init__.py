"""A server's life: its process and all that it starts, its port, the wait until it serves, and its end.

keeper   the process between a sweep and a server, which outlives neither
process  the sweep's end of a keeper
preload  servers forked from a process that has imported their engine
"""
