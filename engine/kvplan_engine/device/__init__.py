"""The hardware: a CPU or a GPU with an amount of memory, a queue of work, and errors when memory runs out.

The engine opens a device; the execution room measures memory and queues work on it.

    device           what a device offers; the CPU as a device; the choice between CPU and GPU
    counted          a device whose memory is only counted
    cuda             an NVIDIA GPU
    cuda_absence     why no GPU can be used, in one sentence
    collectives      sums and gathered rows of the ranks of an engine
    allocation       out-of-memory errors, recognised and reported by phase
    overhead         memory reserved for what is not a tensor
    heap             what the C library keeps of freed memory, while weights are loaded
    control_groups   what limits of containers leave of memory
    process_memory   readings and limits of this process's memory
"""
