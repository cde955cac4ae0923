"""KV outside the pool: preempted sequences swapped to host memory, evicted blocks in host memory and on disk.

The scheduler and its admission decide here what leaves and what comes back. That only appends to a log of transfers;
the step loop has the mover carry them out before the step.

    assembly     creates all of it for an engine
    preemption   swap or recompute, for a preempted sequence: whichever is cheaper
    swap         swapped sequences in host slots
    tiers        evicted blocks: host memory, then disk
    host_tier    the slots of host memory, least recently used
    disk_tier    the files
    mover        carries out the transfers
"""
