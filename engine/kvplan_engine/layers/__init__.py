"""The parts that a decoder's layers are made of, each over one parameter of the checkpoint.

norm         RMSNorm and LayerNorm, alone or fused with the residual addition before them
rope         the table of cosines and sines
projection   what a product with a weight offers, and how one is chosen for each weight
linear       the weight as published, by torch; packed for our own CPU product; packed by oneDNN (CPUs with AMX)
divided      products of which each rank has a part
head_products   products of each head with a weight of its own, and how their kernels are chosen
mixture      a mixture of experts, and how its kernels are chosen; by the CUDA kernels
cuda_skinny  few rows by the CUDA kernels, with what follows the product
quantised_linear  weights in few bits: by the CPU kernels, in plain torch, by the CUDA kernels
"""
