"""Weights of a model from a GGUF file. Weights of products stay as they are stored, others are widened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from kvplan_engine.checkpoints.checkpoint import Checkpoint
from kvplan_engine.checkpoints.families import family_of
from kvplan_engine.checkpoints.families.family import Gguf
from kvplan_engine.checkpoints.gguf_header import read_gguf
from kvplan_engine.checkpoints.gguf_tensors import GgufTensors
from kvplan_engine.checkpoints.parameters import stored_parameters
from kvplan_engine.checkpoints.quantised.ggml_blocks import BLOCK_FORMATS
from kvplan_engine.description.model import ModelDescription, uniform_attention
from kvplan_engine.description.weight_format import WeightFormat
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

_PLAIN_KINDS = (0, 1, 30)
"""Of ggml's types, float32, float16 and bfloat16: all others have scales."""
_ONE_ROW = "ffn_gate_inp_shexp.weight"
"""The shared expert's gate, whose one row is stored as a vector."""


def open_gguf(model: ModelDescription, path: Path) -> Checkpoint:
    """EngineError where ``path`` is damaged, or holds what the engine does not read."""
    from gguf import GGMLQuantizationType, dequantize

    gguf = family_of(model.architecture).gguf
    assert gguf is not None, "read_gguf_config knows no other families"
    file = read_gguf(path)
    if "rope_freqs.weight" in file.tensors:
        raise EngineError(f"{path.name} stores scaled RoPE frequencies, which the engine does not read yet.")

    tensors = GgufTensors(file, path.name, model)

    def read(name: str) -> torch.Tensor:
        shape, kind, rows = tensors.read(name)
        try:
            widened = dequantize(rows, GGMLQuantizationType(kind))
        except NotImplementedError:
            raise EngineError(f"'{name}' is stored in {GGMLQuantizationType(kind).name}, not in weights.") from None
        values = np.array(widened.reshape(shape))  # a copy: unquantised tensors are read-only views of the mapped file
        if kind not in _PLAIN_KINDS and not np.isfinite(values).all():
            raise EngineError(f"'{name}' has scales that are no numbers.", hint="download it again")
        if gguf.norms_as_used and name.endswith("norm.weight"):
            values -= 1
        if name.endswith(_ONE_ROW) and values.ndim == 1:
            values = values.reshape(1, -1)
        num_heads = _heads_of_pairs(name, gguf, model)
        return torch.from_numpy(values if num_heads is None else _halves_of_heads(values, num_heads))

    is_quantised = any(tensor.kind in BLOCK_FORMATS for tensor in file.tensors.values())
    blocks = _GgufBlocks(tensors, gguf, model) if is_quantised else None
    return Checkpoint(path.name, stored_parameters(model, gguf.names), read, blocks)


class _GgufBlocks:
    """The tensors of a GGUF file in ggml's blocks."""

    def __init__(self, tensors: GgufTensors, gguf: Gguf, model: ModelDescription) -> None:
        self._tensors, self._gguf, self._model = tensors, gguf, model

    def format_of(self, name: str, num_inputs: int) -> WeightFormat | None:
        """See QuantisedReader.format_of."""
        kind = self._tensors.kind(name)
        blocks = None if kind is None else BLOCK_FORMATS.get(kind)
        return None if blocks is None or num_inputs % blocks.values else blocks.held

    def read(self, name: str) -> QuantisedWeight:
        """See QuantisedReader.read."""
        _, kind, rows = self._tensors.read(name)
        weight = BLOCK_FORMATS[kind].read(rows)
        num_heads = _heads_of_pairs(name, self._gguf, self._model)
        if num_heads is None:
            return weight
        return weight.with_rows(lambda rows: torch.from_numpy(_halves_of_heads(rows.numpy(), num_heads)))


def _heads_of_pairs(name: str, gguf: Gguf, model: ModelDescription) -> int | None:
    """How many heads the rows of tensor ``name`` are, if pairs that rotate together lie side by side in each."""
    if not gguf.pairs_side_by_side:
        return None
    attention = uniform_attention(model)
    assert attention is not None, "the families that have it are uniform"
    query, key, _ = gguf.names.qkv
    return {query: attention.num_heads, key: attention.num_kv_heads}.get(name.split(".")[-2])


def _halves_of_heads(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of heads with pairs side by side as Hugging Face stores them: the first of all pairs, then the second.

    EngineError where the rows are no whole pairs for every head.
    """
    rows = values.shape[0]
    if not rows or rows % (2 * num_heads):
        raise EngineError(
            f"a GGUF file has {rows:,} rows for {num_heads} heads, no whole pairs.", hint="download it again"
        )
    pairs = values.reshape(num_heads, rows // num_heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))
