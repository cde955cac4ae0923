"""A model in memory, and one step of it.

``engine`` loads a ``LoadedModel``; ``execution`` gives its decoder a ``StepBatch`` for each step.

    loaded_model     config, weights, kernels and decoder of one model on one device
    counted_model    what an engine needs to know of a model, and one whose weights are only counted
    device_kernels   DeviceKernels, what computes a model on a device, and select_kernels, which chooses it
    decoder          the decoder that all families share
    part_decoders    a decoder's part of the stack, between the stages before and after it; a layer for multi-token
                     prediction, behind the decoder whose embedding and head it shares
    residual_stream  from token ids to the residual stream: the buffers that a step's hidden states go through
    decoder_layer    the parts of one layer, and which computes each kind of mixer
    mixers/          what moves information between tokens: attention of every kind, states, convolutions
    feed_forwards    MLPs, their activations, and mixtures of experts
    layer_end_part   inputs of each layer's own (Gemma 4), and what ends such a layer
    kv_pool          where each layer's keys, values and states lie in the pool's blocks
    known_parts      what of a description the decoder computes; the rest is refused by name
    part_kernels     the kernels that a part is made with
    one_call         all layers in one call, where the kernels have one
    step_batch       what the decoder reads in one step, and what its parts share
"""
