"""One weight tensor of a checkpoint: the unit in which parameters, bytes and tensor-parallel shares are counted."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

Role = Literal["linear", "expert", "router", "embedding", "head", "position", "lookup", "norm", "bias", "conv", "state"]
Split = Literal["column", "row", "kv", "vocab", "replicated", "ranks"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight as the checkpoint stores it, without its values.

    ``name`` is the module path inside its layer (``self_attn.q_proj``), so that a quantizer's ignore list can be
    matched against it. ``shape`` is (out, in) for a matrix, (experts, out, in) for stacked experts.
    ``role`` decides what a weight format does with it: only ``linear`` and ``expert`` (and, rarely, ``head``) are
    quantized. ``lookup`` is a table inside a layer, of which a token has some rows. ``split`` decides what one
    tensor-parallel rank holds:

        column      out / tp             row   in / tp              vocab  rows padded, / tp
        kv          out / tp, but at least one KV head             ranks  elements / tp
        replicated  everything
    """

    name: str
    shape: tuple[int, ...]
    role: Role = "linear"
    split: Split = "replicated"
    num_active: int | None = None
    """Stacked matrices: how many of ``shape[0]`` one token uses. None: all of the tensor."""
    never_quantized: bool = False
    """In the model's dtype, however the checkpoint stores other matrices."""
    in_float32: bool = False
    """vLLM keeps it in float32, whatever the model's dtype is."""
    stored_bytes: float | None = None
    """Bytes of an element, scales included, where neither the model's dtype nor the quantization says them."""

    @property
    def is_stacked_experts(self) -> bool:
        """Whether ``shape[0]`` counts experts of a mixture, which ranks may divide among them."""
        return self.num_active is not None and self.role != "linear"

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def num_active_elements(self) -> int:
        """Elements that one token is multiplied with."""
        if self.role == "lookup":
            return 0
        if self.num_active is None:
            return self.num_elements
        return min(self.num_active, self.shape[0]) * prod(self.shape[1:])


def count_elements(tensors: tuple[Tensor, ...]) -> int:
    return sum(tensor.num_elements for tensor in tensors)


def count_active_elements(tensors: tuple[Tensor, ...]) -> int:
    return sum(tensor.num_active_elements for tensor in tensors)
