"""The tensors of a GGUF file under the names that a family's parameters have.

The experts of a layer are one tensor there, [experts, outputs, inputs] ("blk.0.ffn_up_exps.weight"), and one each here
("blk.0.ffn_up_exps.3.weight"): so one expert is read at a time, and rows are stacked as those of any other checkpoint.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from kvplan_engine.checkpoints.gguf_header import GgufFile
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError

_ONE_EXPERT = re.compile(r"(.+_exps)\.(\d+)(\.\w+)")


class StoredRows(NamedTuple):
    """shape: of the values, outermost first. kind: ggml's number of the type. rows: uint8 [..., bytes of a row]."""

    shape: tuple[int, ...]
    kind: int
    rows: np.ndarray


class GgufTensors:
    """The tensors of ``file``, called ``where`` in messages, for ``model``."""

    def __init__(self, file: GgufFile, where: str, model: ModelDescription) -> None:
        self._file, self._where = file, where
        mixtures = {layer.feed_forward.num_experts for layer in model.layers if isinstance(layer.feed_forward, Mixture)}
        self._num_experts = next(iter(mixtures), 0)

    def kind(self, name: str) -> int | None:
        """ggml's number of the type of tensor ``name``; None where the file has none."""
        stored = self._file.tensors.get(_place_of(name)[0])
        return None if stored is None else stored.kind

    def read(self, name: str) -> StoredRows:
        """EngineError where there is no such tensor, or the file ends within it, or has another number of experts."""
        stored, expert = _place_of(name)
        if stored not in self._file.tensors:
            raise EngineError(f"{self._where} holds no tensor '{stored}'.", hint="is it a complete file of this model?")
        tensor, rows = self._file.tensors[stored], self._file.bytes_of(stored)
        shape = tensor.shape[::-1]
        if expert is None:
            return StoredRows(shape, tensor.kind, rows)
        if shape[0] != self._num_experts:
            raise EngineError(
                f"'{stored}' in {self._where} holds {shape[0]} experts, its metadata says {self._num_experts}.",
                hint="download it again",
            )
        return StoredRows(shape[1:], tensor.kind, rows[expert])


def _place_of(name: str) -> tuple[str, int | None]:
    """The tensor of the file that ``name`` is in, and which of its experts; None where it is all of it."""
    found = _ONE_EXPERT.fullmatch(name)
    return (name, None) if found is None else (found[1] + found[3], int(found[2]))
