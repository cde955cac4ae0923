"""`kvplan bench`: paging, batching, prefix caching, sharing and swapping, each measured against what it replaces.

The command's process plans and prints; the engine lives in a child process.

    session               the parent's end: decide what to run, start the worker, collect the results
    options               the names of the experiments, the order to the worker, the sizes of the workloads
    worker                the worker's main function
    experiments           runs experiments by name, each with the engine it needs
    memory_experiments    memory: reservation, sharing
    speed_experiments     throughput: scheduling, prefix, swap, transformers
    latency_experiments   waiting: tiers, chunking
    serving               an engine set up anew for each side of a comparison
    figures               a comparison's results
"""
