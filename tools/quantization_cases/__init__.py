"""Generated checkpoints in mixed formats, counted twice: by kvplan, and from vLLM's modules one by one.

models      small models as vLLM builds them: its modules with their prefixes, classes and shards, listed by hand
rules       which format each of these modules is in: vLLM's loaders in short, module by module
stored      what a matrix takes in a format
profiles    a shipped profile as vLLM builds it, from the model that transformers makes
generate    random quantization_config sections of every loader
"""
