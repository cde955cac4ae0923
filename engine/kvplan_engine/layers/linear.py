"""A matrix product with the weights, into a buffer that exists already; three ways, chosen once per weight.

* ``Linear``: the device's BLAS (cuBLAS on a GPU, MKL where no kernel of ours runs on a CPU).
* ``PanelLinear``: our product over a weight that was packed once (csrc/cpu/packed_linear.cpp), with the activation that
  follows it. Packing gives rows back too, so an embedding that is also the output head is packed like the others.
* ``PackedLinear``: oneDNN over a weight that was packed once: for bfloat16 where the CPU has AMX tiles, which our
  product does not use. The head that is an embedding too goes through ``FewRowsLinear`` there.

torch's own product packs a CPU weight anew in every call, which at a decode step's 4 to 16 rows costs more than the
product (measured: benchmarks/README.md). What is packed takes the place of the published weight: nobody holds it twice.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch

from kvplan_engine.kernels.cpu import ops
from kvplan_engine.kernels.cpu.library import STORAGE_CODES, cpu_kernels
from kvplan_engine.kernels.cpu.packed import PackedWeight, packs_gated

# Rows up to which our product over a published weight beats torch's, where the CPU has AMX.
_FEW_ROWS = 48
# oneDNN returns a new tensor: rows are cut so that it stays within this, which the overhead kept back covers.
_MOST_OUTPUT_BYTES = 16 * 1024**2
# What oneDNN's packed layout is chosen for; any number of rows works with it.
_PACKED_FOR_ROWS = 16


class Projection(Protocol):
    """``out = x @ weight.T + bias`` for weight [num_outputs, num_inputs], and ``activation`` of it."""

    @property
    def activation(self) -> str | None:
        """What is part of the product (see ``kernels.packed.ACTIVATION_CODES``); silu_and_mul halves the outputs."""
        ...

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """x [T, num_inputs] (rows may be strided), out [T, num_outputs]."""
        ...


class Linear:
    """The product as torch has it."""

    __slots__ = ("_bias", "_transposed")
    activation = None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._transposed = weight.t()
        self._bias = bias

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if self._bias is None:
            torch.mm(x, self._transposed, out=out)
        else:
            torch.addmm(self._bias, x, self._transposed, out=out)


class FewRowsLinear:
    """Our kernel over the published layout where it is the faster one, torch's product elsewhere."""

    __slots__ = ("_bias", "_many_rows", "_weight")
    activation = None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias
        self._many_rows = Linear(weight, bias)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if x.shape[0] <= _FEW_ROWS:
            ops.linear(x, self._weight, self._bias, out)
        else:
            self._many_rows(x, out)


class PanelLinear:
    """Our product over a packed weight."""

    __slots__ = ("activation", "packed")

    def __init__(self, packed: PackedWeight) -> None:
        self.packed = packed
        self.activation = packed.activation

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        self.packed.multiply(x, out)


class PackedLinear:
    """oneDNN over a weight that was packed once. Owns the packed copy: the caller drops the published one."""

    __slots__ = ("_bias", "_most_rows", "_packed")
    activation = None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
        self._bias = bias
        self._most_rows = max(1, _MOST_OUTPUT_BYTES // (weight.shape[0] * weight.element_size()))

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        product = torch.ops.mkldnn._linear_pointwise
        for start in range(0, x.shape[0], self._most_rows):
            rows = x[start : start + self._most_rows]
            result = product(_with_rows_rounded_up(rows), self._packed, self._bias, "none", [], "")
            out[start : start + rows.shape[0]] = result[: rows.shape[0]]


def _with_rows_rounded_up(x: torch.Tensor) -> torch.Tensor:
    """``x`` with as many rows more, whatever lies behind it in its memory, as make a number that comes up often.

    oneDNN compiles and keeps a kernel for every number of rows it meets (about 0.8 MB for the four shapes of a layer),
    and batches have every size. The results of the extra rows are thrown away.
    """
    num_rows = x.shape[0]
    step = 8 if num_rows <= 64 else 64
    wanted = -(-num_rows // step) * step
    end = x.storage_offset() + (wanted - 1) * x.stride(0) + x.shape[1]
    if wanted == num_rows or end * x.element_size() > x.untyped_storage().nbytes():
        return x
    return x.as_strided((wanted, x.shape[1]), x.stride())


@cache
def packs_in_units(dtype: torch.dtype) -> bool:
    """Whether this CPU has tiles (AMX) for ``dtype``, which our product does not use, and this torch the packed product.

    All three names are private to torch and may be gone in another version, so they are tried, not assumed.
    """
    has_units = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    if dtype is not torch.bfloat16 or not has_units():
        return False
    weight, x = torch.ones(16, 32, dtype=dtype), torch.ones(4, 32, dtype=dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
        result = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return False
    return bool((result == 32).all())


def make_linear(
    weights: dict[str, torch.Tensor],
    name: str,
    *,
    compiled: bool,
    shared: bool = False,
    activation: str | None = None,
) -> Projection:
    """The projection of parameter ``name`` (``name``.weight and .bias, or ``name`` alone); the fastest way there is.

    compiled: whether our kernels run (the reference path uses torch alone). shared: the weight is an embedding too; if
    it left ``weights``, its rows are in the PanelLinear. activation: becomes part of the product where it can, which
    the projection's ``activation`` tells. A weight that is packed leaves ``weights``, so that it is not held twice.
    """
    key = name if name in weights else f"{name}.weight"
    weight, bias = weights[key], weights.get(f"{name}.bias")
    if not compiled or not weight.is_cpu:
        return Linear(weight, bias)
    kernels = cpu_kernels()
    if packs_in_units(weight.dtype):
        if shared:
            return FewRowsLinear(weight, bias)
        del weights[key]
        return PackedLinear(weight, bias)
    if kernels is None or weight.dtype not in STORAGE_CODES:
        return Linear(weight, bias)
    if activation == "silu_and_mul" and not packs_gated(kernels, weight.shape[0]):
        activation = None
    del weights[key]
    return PanelLinear(PackedWeight(kernels, weight, bias, activation))
