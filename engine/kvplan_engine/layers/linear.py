"""The product over a weight as it was published, by torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from kvplan_engine.kernels.cpu import ops
from kvplan_engine.kernels.cpu.library import STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.packed import PackedWeight, packs_activation
from kvplan_engine.layers.projection import StoredWeight


class Linear:
    """The device's BLAS: cuBLAS on a GPU, MKL where no kernel of ours runs on a CPU. Takes every weight."""

    __slots__ = ("_bias", "_transposed", "_weight")
    activation = None
    layer_args = None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight, self._transposed, self._bias = weight, weight.t(), bias

    @classmethod
    def takes(cls, stored: StoredWeight) -> bool:
        """See ProjectionKind.takes."""
        return True

    @classmethod
    def make(cls, stored: StoredWeight) -> Linear:
        """See ProjectionKind.make. The weight stays where it is."""
        return cls(stored.weight, stored.bias)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if self._bias is None:
            torch.mm(x, self._transposed, out=out)
        else:
            torch.addmm(self._bias, x, self._transposed, out=out)

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.rows."""
        torch.index_select(self._weight, 0, indices, out=out)


# Our own product over a weight that was packed once into panels.
#
# Dense ones by csrc/cpu/products/packed/packed_linear.cpp, quantised ones by products/quantised/quantised_linear.cpp.


@dataclass(frozen=True, slots=True)
class Panels:
    """The kind: float32 and bfloat16 in panels, by ``kernels``. These can be read back: an embedding is packed too."""

    kernels: CpuKernels

    def takes(self, stored: StoredWeight) -> bool:
        """See ProjectionKind.takes."""
        return stored.weight.dtype in STORAGE_CODES

    def make(self, stored: StoredWeight) -> PackedWeight:
        """See ProjectionKind.make."""
        follows = packs_activation(self.kernels, stored.activation, stored.weight.shape[0])
        activation = stored.activation if follows else None
        return PackedWeight(self.kernels, stored.take(), stored.bias, activation)


# oneDNN's product over a weight that it packed once: bfloat16 where the CPU has AMX tiles that ours does not use.
#
# That is where the kernels' compiler does not know them (GCC before 11).
#
# torch's own product packs a CPU weight anew in every call, which at a decode step's 4 to 16 rows costs more than the
# product (measured: benchmarks/README.md).


# Rows up to which our product over a published weight beats torch's.
_FEW_ROWS = 48
# oneDNN returns a new tensor: rows are cut so that it stays within this, which the overhead kept back covers.
_MOST_OUTPUT_BYTES = 16 * 1024**2
# What oneDNN's packed layout is chosen for; any number of rows works with it.
_PACKED_FOR_ROWS = 16


class OneDnnLinear:
    """The product over oneDNN's packed layout. Owns the packed copy; the caller frees the published one."""

    __slots__ = ("_bias", "_most_rows", "_packed")
    activation = None
    layer_args = None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
        self._bias = bias
        self._most_rows = max(1, _MOST_OUTPUT_BYTES // (weight.shape[0] * weight.element_size()))

    @classmethod
    def takes(cls, stored: StoredWeight) -> bool:
        """See ProjectionKind.takes."""
        return packs_for_amx(stored.weight.dtype) and not stored.is_embedding

    @classmethod
    def make(cls, stored: StoredWeight) -> OneDnnLinear:
        """See ProjectionKind.make."""
        return cls(stored.take(), stored.bias)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        product = torch.ops.mkldnn._linear_pointwise
        for start in range(0, x.shape[0], self._most_rows):
            rows = x[start : start + self._most_rows]
            result = product(_with_rows_rounded_up(rows), self._packed, self._bias, "none", [], "")
            out[start : start + rows.shape[0]] = result[: rows.shape[0]]

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """Not possible: oneDNN's layout is private to it."""
        raise TypeError("the rows of oneDNN's packed layout cannot be read back")


class FewRowsLinear(Linear):
    """The output head that is the embedding too, on such a CPU: as published, for oneDNN's layout gives no rows back.

    Our kernel over the published layout up to ``_FEW_ROWS`` rows, torch's product beyond.
    """

    __slots__ = ()

    @classmethod
    def takes(cls, stored: StoredWeight) -> bool:
        """See ProjectionKind.takes."""
        return packs_for_amx(stored.weight.dtype) and stored.is_embedding

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if x.shape[0] <= _FEW_ROWS:
            ops.linear(x, self._weight, self._bias, out)
        else:
            super().__call__(x, out)


def _with_rows_rounded_up(x: torch.Tensor) -> torch.Tensor:
    """``x`` with its number of rows rounded up; the extra rows are whatever follows in its memory.

    oneDNN compiles and keeps a kernel for every number of rows (about 0.8 MB for the four shapes of a layer), and
    batches come in every size. The results of the extra rows are discarded.
    """
    num_rows = x.shape[0]
    step = 8 if num_rows <= 64 else 64
    wanted = -(-num_rows // step) * step
    end = x.storage_offset() + (wanted - 1) * x.stride(0) + x.shape[1]
    if wanted == num_rows or end * x.element_size() > x.untyped_storage().nbytes():
        return x
    return x.as_strided((wanted, x.shape[1]), x.stride())


@cache
def packs_for_amx(dtype: torch.dtype) -> bool:
    """Whether this CPU has AMX tiles for ``dtype``, and this torch oneDNN's packed product.

    All three names are private to torch and may be missing in another version, so they are tried.
    """
    has_amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    if dtype is not torch.bfloat16 or not has_amx():
        return False
    weight, x = torch.ones(16, 32, dtype=dtype), torch.ones(4, 32, dtype=dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
        result = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return False
    return bool((result == 32).all())
