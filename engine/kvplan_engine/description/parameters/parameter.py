"""One parameter, and the shapes that parts are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvplan_engine.description.norms import NormKind

Kind = Literal["matrix", "norm", "bias", "other"]
Rows = tuple[tuple[str, int], ...]
Split = Literal["none", "outputs", "heads", "inputs", "once", "vocabulary", "experts"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of a model.

    part: what it belongs to ("qkv", "experts.up"). leaf: "weight", "bias", or "" for a tensor that is the part itself.
    layer: whose it is; None outside of the layers. rows: what the first axis is stacked of, in order, such as
    (("query", 4096), ("key", 1024), ("value", 1024)); () where it is one. kind decides dummy values.

    split: what each rank has of it where several share every layer (``description/division.py``):

        none         all of it
        outputs      an equal part of each run of ``rows``
        heads        an equal part of the first axis, whatever it is stacked of
        inputs       an equal part of the last axis: a product with it is a sum over the ranks
        once         all of it on the first rank, zeros on the others: it is added to such a sum
        vocabulary   an equal part of the first axis, rounded up
        experts      the rows of a run of experts; the first ranks have one more where they do not divide

    kv_heads: of the rows "key" and "value" (of all, without ``rows``): heads, which ranks share where they are fewer.
    num_experts: whose rows, as many of each, lie one below the other, where ``split`` is "experts".
    """

    part: str
    shape: tuple[int, ...]
    kind: Kind
    leaf: str = "weight"
    rows: Rows = ()
    layer: int | None = None
    split: Split = "none"
    kv_heads: int = 0
    num_experts: int = 0

    @property
    def name(self) -> str:
        """The parameter's own: "layers.3.qkv.weight", "embedding.weight", "layers.0.sinks"."""
        return ".".join(filter(None, ("" if self.layer is None else f"layers.{self.layer}", self.part, self.leaf)))

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def projection(
    part: str, rows: Rows | int, num_inputs: int, *, bias: bool = False, split: Split = "none", kv_heads: int = 0
) -> Iterator[Parameter]:
    """A matrix [rows, num_inputs], and a bias [rows] where there is one. rows: by label where several are stacked.

    split, kv_heads: of the matrix, see Parameter; the bias follows it.
    """
    stacked = () if isinstance(rows, int) else rows
    num_outputs = rows if isinstance(rows, int) else sum(size for _, size in rows)
    yield Parameter(part, (num_outputs, num_inputs), "matrix", rows=stacked, split=split, kv_heads=kv_heads)
    if bias:
        of_bias: Split = "once" if split == "inputs" else split
        yield Parameter(part, (num_outputs,), "bias", "bias", rows=stacked, split=of_bias, kv_heads=kv_heads)


def norm(part: str, kind: NormKind, size: int) -> Iterator[Parameter]:
    """The weight [size] of a norm, and the bias that LayerNorm has; nothing for a norm without parameters."""
    if kind not in ("none", "rms_none"):
        yield Parameter(part, (size,), "norm")
    if kind in ("layer", "layer_plus_one"):
        yield Parameter(part, (size,), "bias", "bias")
