"""The parts that compute each token by itself.

mlp_part            one layer's MLP
mixture_part        one layer's mixture of experts
apart_mixture_part  an MLP and experts beside it, each behind norms of its own (Gemma 4)
"""
