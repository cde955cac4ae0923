"""`kvplan bench`: what paging, continuous batching, sharing and swapping are worth, each measured beside its baseline.

The command's process plans and prints; the engine lives in a child process (:mod:`kvplan.bench.worker`).
"""
