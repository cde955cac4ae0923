"""The compiled CPU kernels (csrc/cpu).

library      the C functions, typed
structures   the structures that they take, and the check of their sizes when the library is loaded
ops          the operations of ``kernels.interface``
packed       a weight packed once, or one for each head, and the product with it
quantised    the same of a weight in few bits
lora         what LoRA adapters add to a product
mixture      a mixture of experts packed once
states       the operations of layers with a state
huge_pages   large pages for memory that every step reads; memory for weights
"""
