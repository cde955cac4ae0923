"""What a checkpoint on disk holds, from its headers alone: exact sizes, and where it is not what its config says.

stored       sums of tensors by kind and storage type, for each part of a model (``StoredCheckpoint``)
safetensors  files, shards and headers of a directory; which are missing
naming       which part of a model a tensor belongs to, by its published name
comparison   a ModelSpec with its checkpoint: ``with_checkpoint``
"""
