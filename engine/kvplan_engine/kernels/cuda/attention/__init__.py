"""How the attention kernels are compiled and launched.

shape          what they are specialised for, and how one is launched
launches       those sizes for a model's shape on a device
latent_launch  latent attention on tensor cores
wgmma_launch   prompts by products of warp groups
"""
