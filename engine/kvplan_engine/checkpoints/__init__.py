"""From a model's name to its config and weights in memory. ``models`` calls ``loaders``; no planner code is used.

hub           where a model's files are: a path, the Hugging Face cache, the hub, a shipped profile
config_json   a ModelDescription from a config.json or a shipped profile
fields        fields of a config.json that several families share
families/     one file for each family of models: how its config is read, what its tensors are called
tensor_names  the names of a family's tensors
parameters    which tensors of a checkpoint each parameter is made of
row_order     the rows of queries and keys, in the order of the kernels; of latent attention, of layers with a state and
              of gates; factors of activations, multiplied into the weights
quantised/    weights in few bits, of every method that is read, and rounding
tokenizer     a model's tokenizer; that of a .gguf file is kept in the user's cache
weights       the weights in memory: allocated, filled, counted, fingerprinted
loaders       which load_format reads weights from what
safetensors, gguf, dummy   one loader each; which layers use the same dummy weights
gguf_header   metadata of a GGUF file, and where its tensors lie
"""
