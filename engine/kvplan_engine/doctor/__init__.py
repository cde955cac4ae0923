"""What ``kvplan doctor`` asks a worker: the device as torch, CUDA and the compiler have it, and its kernels' verdicts.

examine    the whole report
gpu        facts of a GPU, and of what drives it
cpu        facts of a processor
compiler   where NVRTC was found, in words that name no user
"""
