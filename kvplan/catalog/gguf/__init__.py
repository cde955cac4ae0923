"""Models in GGUF files, sized from the header alone.

header   metadata, and shape and type of every tensor
metadata what a header says of its model, asked for by name
families, state_families   what each family's files say in words of their own
models   from a file to a ModelSpec, with the weights as stored, by way of a config.json in the readers' words
"""
