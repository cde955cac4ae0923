"""Readers of configs, one module per kind of architecture: from a checked config to the layers it describes.

kvplan/catalog/registry.py names the reader of each architecture and imports its module only when a model needs it.
A reader takes a ConfigView and returns a ``Body`` (common).

multi_token     a checkpoint's own layers for multi-token prediction
common          what most readers read the same way: sizes, rotary positions, layer types
plain, windows  decoders with the same layer throughout, and each family's rule for sliding windows
classic         decoders from before Llama
mixtures        mixtures of experts on softmax attention
heterogeneous   layers that differ in heads, head sizes or feed-forward
step            Step 5: an index of regions of tokens beside windows
gemma           Gemma 3n and 4: per-layer embeddings, shared caches
latent          latent attention (MLA): DeepSeek V2 and V3, Kimi K2, GLM 5
compressed      DeepSeek V4
state           Mamba, delta nets, short convolutions: the mixers, and models made only of them
delta, hybrid, short_conv   hybrids of attention with linear attention, Mamba, convolutions
encoder_decoder cross attention: T5, Whisper, Llama 3.2 Vision
multimodal, towers   wrappers around a language model, and the size of their towers
"""
