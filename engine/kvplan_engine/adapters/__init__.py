"""LoRA adapters: small corrections of some products; each sequence of a step may have one of its own.

    sites        the products of a model that adapters may correct, and the bytes of their slots
    peft         one adapter, read from the directory that PEFT wrote
    step_rows    which rows of a step are corrected by which slot
    library      adapters by name, in host memory; ``max_loras`` of them in the device's slots; random ones
    lora_linear  the product with its correction

Which adapter a request wants says ``LoRARequest`` (``requests.request``); the scheduler sees to it that those of the
running sequences have slots, and the prefix cache that KV of one is never another's.

An adapter of rank r gives a product ``x W^T`` the correction ``scale * x A^T B^T``, A [r, inputs], B [outputs, r]
(Hu et al., 2021, LoRA).
"""
