"""Models that run in their class of transformers, over the same pool, scheduler and sampler as all others.

``model_impl="transformers"``; ``auto`` takes it for what the decoder lacks. What each layer keeps, and so blocks and
bytes, comes from the engine's description, as everywhere.

    choice            which implementation runs a model, and the class that transformers has for it
    loading           the class with its weights, checked against the description
    split_model       a class's layers and its head, called apart
    paged_attention   all sequences in one forward pass: the class's attention, over the pool
    pool_cache        one sequence after the other: a cache of transformers whose tokens lie in the pool
    state_cache       the states of one sequence, from the pool and back
    ways              the two ways as one interface
    model             TransformersModel, which takes the place of LoadedModel
"""
