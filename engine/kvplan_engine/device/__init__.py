"""The hardware: a CPU or a GPU with an amount of memory, a queue of work, and errors when memory runs out.

The engine opens a device; the execution room measures memory and queues work on it.

    device           what a device offers; the CPU as a device; one whose memory is only counted; which is taken
    cuda             an NVIDIA GPU; why none can be used, in one sentence
    collectives      sums and gathered rows of the ranks of an engine
    custom_all_reduce  whether sums of small messages are made by a kernel of ours, in memory that the ranks share
    allocation       out-of-memory errors, recognised and reported by phase; what is reserved for what is not a tensor
    process_memory   readings and limits of this process's memory, and of its containers; the C library's heap
"""
