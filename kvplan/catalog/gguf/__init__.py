"""Models in GGUF files, sized from the header alone.

header   metadata, and shape and type of every tensor
models   from that to a ModelSpec, with the weights as stored
"""
