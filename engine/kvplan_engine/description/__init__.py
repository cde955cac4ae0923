"""A model as data: layers made of parts, with the sizes and the behaviour of each. No torch, no names of tensors.

A family (``checkpoints/families``) reads a config.json into a ``ModelDescription``. From it follow the parameters
(``parameters``), what each layer keeps of a sequence (``kept_units``), the buffers of a step (``memory/breakdown``) and
what the decoder runs. A part that the decoder cannot run yet can still be described: its capacity is measured without
weights (``load_format="none"``).

    mixers         what moves information between tokens: attention of every kind, states, convolutions
    feed_forward   MLPs and mixtures of experts
    model          layers of mixers and feed-forwards, and what stands around them; layers that all keep the same
    norms          which normalisations there are, and where they stand
    parameters/    every parameter of a model: its shape, part by part
    division       what one rank has of a model where several share every layer, and what they cannot share; what it
                   keeps of a model that no rank computes a part of yet
    kept_units     what a layer keeps of a sequence, and for how long
    weight_format  the bytes of a weight in few bits; formats that weights can be quantised to when they are loaded
"""
