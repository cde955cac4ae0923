"""LoRA adapters: small corrections of some products; each sequence of a step may have one of its own.

    sites        the products of a model that adapters may correct, and the bytes of their slots
    peft         one adapter, read from the directory that PEFT wrote
    dummy        one of random weights, for measuring
    slots        what a step reads: ``max_loras`` adapters on the device
    step_rows    which rows of a step are corrected by which slot
    library      adapters by name, in host memory; which of them lie in the slots
    lora_linear  the product with its correction

Which adapter a request wants says ``requests/adapter.py``; the scheduler sees to it that those of the running sequences
have slots, and the prefix cache that KV of one is never another's.

An adapter of rank r gives a product ``x W^T`` the correction ``scale * x A^T B^T``, A [r, inputs], B [outputs, r]
(Hu et al., 2021, LoRA).
"""
