"""Models that run in their class of transformers, over the same pool, scheduler and sampler as all others.

``model_impl="transformers"``; ``auto`` takes it for what the decoder lacks. What each layer keeps, and so blocks and
bytes, comes from the engine's description, as everywhere.

    paged_attention   all sequences in one forward pass: the class's attention, over the pool
    pool_cache        one sequence after the other: a cache of transformers whose tokens and states lie in the pool
    ways              which implementation runs a model, its class of transformers, and two ways to run that,
                      layers and head apart
    model             the class with its weights, checked against the description; TransformersModel, which takes the
                      place of LoadedModel
"""
