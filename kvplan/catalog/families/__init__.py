"""Readers of configs, one module per kind of architecture: from a checked config to the layers it describes.

profiles/architectures.json names the reader of each architecture; its module is imported when a model needs it.
A reader takes a ConfigView and returns a ``Body`` (common).

softmax      attention to keys and values of heads
latent       attention to latents or compressed vectors
states       layers that keep a state
wrappers     towers around a language model
common       what most readers read and make the same way: sizes, rotary positions, layer types, layers, the whole body
positions    layers that turn by positions of their own
"""
