"""What a checkpoint on disk holds, from its headers alone: exact sizes, and which of them are which part of a model.

stored       sums of tensors by kind and storage type, for each part of a model (``StoredCheckpoint``)
safetensors  files, shards and headers of a directory; which are missing
naming       which part of a model a tensor belongs to, by its published name
"""
