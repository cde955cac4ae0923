"""A client of several processes, for servers that one process cannot read: each sends a share of the requests.

messages   what passes between the command and its processes
team       the command's side: starts them together and puts their records into one
__main__   a process's side
"""
