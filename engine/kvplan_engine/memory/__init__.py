"""How the device's memory is divided, and the tensors that it is divided into. The engine's carver calls it.

breakdown   the account: buffers of a step, bytes of a block, what the memory of an engine is used for. No torch
step_buffers    buffers of a step for the engine's settings; index_buffers: which tokens lie where. No torch
device_buffers  buffers of a step that only CUDA kernels need. No torch
reserve     what is kept of a device beside all of these. No torch
plan        from settings and device memory to a number of blocks, or an error. No torch
ranks       the same for several ranks, each with memory of its own. No torch
workspace   the buffers of a step, one allocation
kv_cache    the KV pool
host_pool   its counterpart in host memory
"""
