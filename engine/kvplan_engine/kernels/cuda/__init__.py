"""The CUDA kernels (csrc/cuda).

launching/  kernels compiled, loaded and launched, on a device or emulated
params      the kernels' argument structures
attention   how the attention kernels are compiled and launched
products/   products with weights in few bits, of few rows, and what adapters add
mixtures    a mixture of experts
all_reduce  sums over ranks in memory that they share
states      layers with a state
ops         the operations of ``kernels.interface``; those that bring a step's inputs
sampling    a token for each sequence, as it asks for
checks      what the kernels ask of their arguments beyond ``kernels.arguments``
step_memory what products need of the workspace
"""
