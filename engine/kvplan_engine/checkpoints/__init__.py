"""From a model's name to its config and weights in memory. ``models`` calls ``loaders``; no planner code is used.

hub           where a model's files are: a path, the Hugging Face cache, the hub, a shipped profile
config        ModelConfig, the shape of a decoder
config_json   a ModelConfig from a config.json or a shipped profile
fields        fields of a config.json that several families share
families/     one file for each family of models: how its config is read, what its tensors are called
parameters    what parameters a decoder has, and which tensors of a checkpoint they are made of
weights       the weights in memory: allocated, filled, counted, fingerprinted
loaders       which load_format reads weights from what
safetensors, gguf, dummy   one loader each
"""
