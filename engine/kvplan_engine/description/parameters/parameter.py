"""One parameter, and the shapes that parts are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvplan_engine.description.norms import NormKind

Kind = Literal["matrix", "norm", "bias", "other"]
Rows = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of a model.

    part: what it belongs to ("qkv", "experts.up"). leaf: "weight", "bias", or "" for a tensor that is the part itself.
    layer: whose it is; None outside of the layers. rows: what the first axis is stacked of, in order, such as
    (("query", 4096), ("key", 1024), ("value", 1024)); () where it is one. kind decides dummy values.
    """

    part: str
    shape: tuple[int, ...]
    kind: Kind
    leaf: str = "weight"
    rows: Rows = ()
    layer: int | None = None

    @property
    def name(self) -> str:
        """The parameter's own: "layers.3.qkv.weight", "embedding.weight", "layers.0.sinks"."""
        return ".".join(filter(None, ("" if self.layer is None else f"layers.{self.layer}", self.part, self.leaf)))

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def projection(part: str, rows: Rows | int, num_inputs: int, *, bias: bool = False) -> Iterator[Parameter]:
    """A matrix [rows, num_inputs], and a bias [rows] where there is one. rows: by label where several are stacked."""
    stacked = () if isinstance(rows, int) else rows
    num_outputs = rows if isinstance(rows, int) else sum(size for _, size in rows)
    yield Parameter(part, (num_outputs, num_inputs), "matrix", rows=stacked)
    if bias:
        yield Parameter(part, (num_outputs,), "bias", "bias", rows=stacked)


def norm(part: str, kind: NormKind, size: int) -> Iterator[Parameter]:
    """The weight [size] of a norm, and the bias that LayerNorm has; nothing for a norm without parameters."""
    if kind not in ("none", "rms_none"):
        yield Parameter(part, (size,), "norm")
    if kind in ("layer", "layer_plus_one"):
        yield Parameter(part, (size,), "bias", "bias")
