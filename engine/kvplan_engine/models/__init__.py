"""A model in memory, and one step of it.

``engine`` loads a ``LoadedModel``; ``execution`` gives its decoder a ``StepBatch`` for each step.

    loaded_model     config, weights, kernels and decoder of one model on one device
    counted_model    what an engine needs to know of a model, and one whose weights are only counted
    device_kernels   DeviceKernels, what computes a model on a device, and select_kernels, which chooses it
    decoder          the decoder that all families share
    decoder_layer    the weights of one layer
    layer_run        all layers in one call, where the kernels have one
    step_batch       what the decoder reads in one step
"""
