"""Weights of a model from a GGUF file, dequantised to the engine's dtype."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from kvplan_engine.checkpoints.families import family_of
from kvplan_engine.checkpoints.families.family import Gguf
from kvplan_engine.checkpoints.gguf_header import read_gguf
from kvplan_engine.checkpoints.parameters import stored_parameters
from kvplan_engine.checkpoints.weights import Weights, fill_weights
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.uniform import uniform_attention
from kvplan_engine.errors import EngineError


def fill_from_gguf(weights: Weights, model: ModelDescription, path: Path) -> None:
    """Dequantise every tensor of ``path`` into ``weights``."""
    from gguf import GGMLQuantizationType, dequantize

    gguf = family_of(model.architecture).gguf
    assert gguf is not None, "read_gguf_config knows no other families"
    file = read_gguf(path)
    if "rope_freqs.weight" in file.tensors:
        raise EngineError(f"{path.name} stores scaled RoPE frequencies, which the engine does not read yet.")

    def read(name: str) -> torch.Tensor:
        stored = file.tensors[name]
        values = dequantize(file.bytes_of(name), GGMLQuantizationType(stored.kind))
        # a copy: unquantised tensors are read-only views of the mapped file
        values = np.array(values.reshape(stored.shape[::-1]))
        if gguf.norms_as_used and name.endswith("norm.weight"):
            values -= 1
        num_heads = _heads_of_pairs(name, gguf, model)
        return torch.from_numpy(values if num_heads is None else _halves_of_heads(values, num_heads))

    fill_weights(weights, stored_parameters(model, gguf.names), read, path.name)


def _heads_of_pairs(name: str, gguf: Gguf, model: ModelDescription) -> int | None:
    """How many heads the rows of tensor ``name`` are, if pairs that rotate together lie side by side in each."""
    if not gguf.pairs_side_by_side:
        return None
    attention = uniform_attention(model)
    assert attention is not None, "the families that have it are uniform"
    query, key, _ = gguf.names.qkv
    return {query: attention.num_heads, key: attention.num_kv_heads}.get(name.split(".")[-2])


def _halves_of_heads(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of heads with pairs side by side as Hugging Face stores them: the first of all pairs, then the second."""
    rows = values.shape[0]
    pairs = values.reshape(num_heads, rows // num_heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))
