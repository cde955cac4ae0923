"""A rank's weights from a checkpoint that is at hand: the formulas' share of each part, scaled to what is stored.

How a tensor is divided over ranks follows from its shape, which the formulas know; what it takes in all, the headers
know better (a layer that was left unquantized, say). Where both agree the factors are 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvplan.catalog.checkpoint.stored import StoredWeights
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.tensors import Tensor
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.weights import format_of, quantized_bytes, served_bytes


@dataclass(frozen=True, slots=True)
class StoredScale:
    """What to multiply a part's bytes by, as the formulas give them, to get what the checkpoint stores.

    ``layers`` has one factor for each layer; both are 1 where no checkpoint is at hand.
    """

    layers: tuple[float, ...]
    outside: float = 1.0


def stored_scale(spec: ModelSpec, dtype: str) -> StoredScale:
    """The factors for weights served in ``dtype``."""
    stored = spec.checkpoint
    if stored is None:
        return StoredScale((1.0,) * spec.num_layers)
    outside = _factor(served_bytes(stored.outside, dtype), _formula_bytes(spec, spec.tensors, None, dtype))
    formulas = [_formula_bytes(spec, layer.all_tensors, index, dtype) for index, layer in enumerate(spec.layers)]
    found = [served_bytes(layer, dtype) for layer in stored.layers]
    if len(found) != len(formulas):  # layers that the config counts in pairs
        return StoredScale((_factor(sum(found), sum(formulas)),) * spec.num_layers, outside)
    return StoredScale(tuple(map(_factor, found, formulas)), outside)


def _factor(stored_bytes: int, formula_bytes: int) -> float:
    return stored_bytes / formula_bytes if formula_bytes else 1.0


def _formula_bytes(spec: ModelSpec, tensors: Iterable[Tensor], layer: int | None, dtype: str) -> int:
    """The whole tensors as published, before any rank pads them."""
    total = 0
    for tensor in tensors:
        found = format_of(spec.quantization, tensor, layer)
        plain = tensor.num_elements * element_bytes(dtype)
        total += plain if found is None else quantized_bytes(tensor.shape, found)
    return total


def stored_rank_bytes(stored: Iterable[StoredWeights], tensor_parallel_size: int, dtype: str) -> int:
    """A part that all ranks share evenly, as it is stored."""
    return -(-served_bytes(stored, dtype) // tensor_parallel_size)
