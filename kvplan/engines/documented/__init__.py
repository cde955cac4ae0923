"""Engines that are started and read by their documentation and by logs that others published: none of them was run.

sglang, trtllm  the adapters
models          what both share, and what the planner expects of them on one GPU
"""
