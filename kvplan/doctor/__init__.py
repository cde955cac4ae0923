"""`kvplan doctor`: what this machine has, what would be used of it, and whether its kernels compute what torch does.

session    the parent's end: the driver's facts, a worker for the rest, both as one report; the GPU as the driver lists
           it, without torch
screen     the report as one screen
measure    `--measure`: speeds of a GPU as a file to send, and a page
worker     the worker: the engine's report
"""
