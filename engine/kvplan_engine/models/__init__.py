"""A model in memory, and one step of it.

``engine`` loads a ``LoadedModel``; ``execution`` gives its decoder a ``StepBatch`` for each step.

    loaded_model     config, weights, kernels and decoder of one model on one device
    counted_model    what an engine needs to know of a model, and one whose weights are only counted
    device_kernels   DeviceKernels, what computes a model on a device, and select_kernels, which chooses it
    decoder          the decoder that all families share
    embedding        from token ids to the residual stream
    decoder_layer    the parts of one layer
    attention_part   one layer's attention
    attention_gate   the gate of its output
    latent_part      one layer's latent attention
    delta_part       one layer's gated delta rule, or Kimi Delta Attention
    index_part       the index by which sparse latent attention chooses tokens
    mamba1_part, mamba2_part, short_conv_part   one layer's Mamba, Mamba 2, short convolution
    mlp_part         one layer's MLP
    mixture_part     one layer's mixture of experts
    known_parts      what of a description the decoder computes; the rest is refused by name
    part_kernels     the kernels that a part is made with
    step_space       what the parts share in one step
    one_call/        all layers in one call, where the kernels have one
    step_batch       what the decoder reads in one step
"""
