"""How the device's memory is divided, and the tensors that it is divided into. The engine's carver calls it.

breakdown   the account: buffers of a step, bytes of a block, what the memory of an engine is used for. No torch
step_buffers  buffers of a step for the engine's settings: which tokens lie where, what CUDA kernels need. No torch
plan        from settings and device memory to a number of blocks, or an error; what is kept beside them;
              the same for several ranks, each with memory of its own. No torch
workspace   the buffers of a step, one allocation; the KV pool, and its counterpart in host memory
"""
