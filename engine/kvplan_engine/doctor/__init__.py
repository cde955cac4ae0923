"""What ``kvplan doctor`` asks a worker: the device as torch, CUDA and the compiler have it, and its kernels' verdicts.

examine    the whole report: facts of a GPU and of what drives it, of a processor, of the compiler; of several
           GPUs, which sums over them are NCCL's
"""
