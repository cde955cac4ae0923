"""Paged attention: new keys and values into the KV pool, and queries over what lies there.

The decoder calls it once or twice for each layer, through the protocol in ``backend``.

    backend      the protocol AttentionBackend, and what its calls take: AttentionInputs, AttentionOptions, Rotation
    checks       what attention asks of its arguments, on any device
    stored       what a pool stores of keys and values, and what it gives back
    metadata     AttentionMetadata: who the sequences of a step are and where their blocks lie
    layer_cache  where one layer's keys and values lie in the pool
    reference    plain torch, the definition
    cpu          the compiled CPU kernels
    cuda         the CUDA kernels
    cuda_plan    the CUDA kernels' work items, planned on the device once for each step; cuda_buffers: what lies between
    cuda_shared  the same of prefixes that decoding sequences share
    cuda_scales  where the CUDA kernels want the scales of a cache in integers
"""
