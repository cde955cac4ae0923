"""Paged attention: new keys and values into the KV pool, and queries over what lies there.

The decoder calls it once or twice for each layer, through the protocol in ``backend``.

    backend      the protocol AttentionBackend, and what its calls take: AttentionInputs, AttentionOptions, Rotation,
                 AttentionMetadata (who the sequences of a step are and where their blocks lie)
    checks       what attention asks of its arguments, on any device; what a pool stores of keys and values
    layer_cache  where one layer's keys and values lie in the pool
    reference    plain torch, the definition
    cpu          the compiled CPU kernels
    cuda         the CUDA kernels
    cuda_plan    the CUDA kernels' work items, and those of prefixes that sequences share, planned once for each step;
                 what lies between the kernels
"""
