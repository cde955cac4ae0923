"""What computes a step's numbers outside attention's logic and the matrix products of torch. Knows tensors, no models.

interface   Ops: the operations of a model, each declared once
torch_ops   the definition of each in plain torch
torch_mixture, mixture_weights   a mixture of experts: its definition, and its weights as all kernels take them
quantised_weight   a weight in few bits, in the one layout that all formats become; what it is multiplied with
lora        what adapters add to a product: its definition
workspace_sizes  what kernels need of the workspace: parts of prefill tiles, groups of rows with one adapter
c_structures  structures of C for ctypes, read from the sources that declare them
arguments   what all kernels ask of their arguments; a step's inputs on their way to the device
build       compiles csrc/cpu on first use; cache_folders: where the result may lie
states/     layers with a state: where it lies in the pool, and what is computed
cpu/        the compiled CPU kernels: operations, packed weights
cuda/       the CUDA kernels: compiled by NVRTC on first use, launched through the driver
"""
