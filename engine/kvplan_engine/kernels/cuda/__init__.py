"""The CUDA kernels (csrc/cuda).

runtime     what a device has to offer: its properties, and kernels that can be launched
driver      that, from the CUDA driver; launch_config: its structures of a launch with attributes
emulation   that, on the CPU, for tests
variants    a source with its compile-time shape
nvrtc       compiles one
cache       keeps what was compiled
params      the kernels' argument structures; part_params: those that only some models need
checks      what they ask of their arguments beyond ``kernels.arguments``
ops         the operations of ``kernels.interface``; inputs: those that bring a step's inputs
mixture     a mixture of experts, step by step; mixture_product: one product of it; mixture_memory: what lies between
mixture_launch  how its kernels are compiled and launched
states      the operations of layers with a state; state_launch: how their kernels are compiled
quantised   products with weights in few bits; quantised_launch: how they are compiled; float8: by torch
skinny      products of few rows with weights as published; skinny_launch: how they are compiled
lora        what adapters add to a product
product_params  the argument structures of these; step_memory: what they need of the workspace
sampling    a token for each sequence, as it asks for; draw_params: its structures
attention_shape  what the attention kernels are specialised for
attention   how they are compiled and launched; latent_launch: latent attention on tensor cores; wgmma_launch: prompts
            by products of warp groups
tensor_map  tensors of which boxes are copied
"""
