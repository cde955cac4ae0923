"""The compiled CPU kernels (csrc/cpu).

library      the C functions, typed
step_args    the structures of a layer of a step, and of what it is made of
structures   every structure by its name in C, and the check of their sizes when the library is loaded
ops          the operations of ``kernels.interface``
packed       a weight packed once, and the product with it
quantised    the same of a weight in few bits
lora         what LoRA adapters add to a product, and its structures for C (lora_args)
head_products   a weight for each head, packed once, and its structure for C (head_products_args)
mixture      a mixture of experts packed once, and its structures for C (mixture_args)
states       convolutions and recurrences of layers with a state, and their structures for C (state_args)
delta        the gated delta rule's structure for C
mamba        the recurrences of Mamba's layers, and their structures for C (mamba_args)
choice_args  the choice of tokens for sparse attention, as C takes it
huge_pages   large pages for memory that every step reads; memory for weights
"""
