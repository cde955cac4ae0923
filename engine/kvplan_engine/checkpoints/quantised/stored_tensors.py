"""The tensors of a checkpoint, under the names that a family's parameters have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvplan_engine.checkpoints.weights import ReadTensor
from kvplan_engine.errors import EngineError

_BESIDE = ("weight_scale", "weight_scale_inv", "weight.absmax", "SCB")
"""What a tensor that is called as a dense one has beside it where it is quantised."""


@dataclass(frozen=True, slots=True)
class StoredTensors:
    """read_stored: by the checkpoint's name. stored_name: what it calls a tensor. names: all that there are."""

    read_stored: ReadTensor
    stored_name: Callable[[str], str]
    names: frozenset[str]

    def has(self, name: str) -> bool:
        return self.stored_name(name) in self.names

    def is_dense(self, name: str) -> bool:
        """Whether ``name`` itself is there, without scales beside it."""
        return self.has(name) and not any(self.has_part(name, leaf) for leaf in _BESIDE)

    def read(self, name: str) -> torch.Tensor:
        """Tensor ``name``; KeyError where there is none."""
        return self.read_stored(self.stored_name(name))

    def part(self, name: str, leaf: str) -> torch.Tensor:
        """What stands beside weight ``name``: "...q_proj.weight" and "qzeros" make "...q_proj.qzeros"."""
        beside = f"{name.removesuffix('weight')}{leaf}"
        if not self.has(beside):
            raise EngineError(f"the checkpoint holds no tensor '{beside}'.", hint="is it quantised as its config says?")
        return self.read(beside)

    def has_part(self, name: str, leaf: str) -> bool:
        return self.has(f"{name.removesuffix('weight')}{leaf}")
