"""How the products with quantised weights are compiled and launched on a device: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.kernels.cuda.launching.families import QUANTISED_MMA
from kvplan_engine.kernels.cuda.launching.runtime import DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant, variant
from kvplan_engine.kernels.quantised_weight import LARGEST_GROUP, QuantisedWeight

FEW_ROWS = 16
"""Up to so many rows are multiplied with the codes; for more, rows of the weight are widened and torch multiplies."""

_THREADS = 128  # quantised_simple.cu and quantised_mma.cu: THREADS
_WARPS = 4
_TENSOR_ROWS = 5  # from so many on, if there are tensor cores
_TENSOR_OUTPUTS = 32  # of a warp
_SMALLEST_GROUP = 8  # quantised.cuh: PIECE
_BLOCKS_PER_MULTIPROCESSOR = 2  # with fewer, warps share outputs
_MOST_SIMPLE_ROWS = 8


@dataclass(frozen=True, slots=True)
class WeightShape:
    """What the kernels are compiled for. book: "linear", "float8" or "table"; code_bytes: loaded at once."""

    scalar: torch.dtype
    scale: torch.dtype
    bits: int
    group: int
    book: str
    has_minimums: bool
    code_bytes: int
    num_inputs: int
    num_outputs: int

    @classmethod
    def of(cls, weight: QuantisedWeight, scalar: torch.dtype) -> WeightShape:
        """CudaKernelError for a group that the kernels do not take."""
        group = weight.group_size
        if not _SMALLEST_GROUP <= group <= LARGEST_GROUP or group & (group - 1):
            raise CudaKernelError(f"the CUDA kernels do not support groups of {group} inputs")
        row_bytes = weight.codes.shape[1]
        return cls(
            scalar,
            weight.scales.dtype,
            weight.bits,
            group,
            book_kind(weight),
            weight.minimums is not None,
            next(size for size in (16, 8, 4) if row_bytes % size == 0),
            weight.num_inputs,
            weight.num_outputs,
        )

    @property
    def lane_inputs(self) -> int:
        """Inputs whose codes a thread loads at once."""
        return self.code_bytes * 8 // self.bits

    def defines(self) -> dict[str, str | int | torch.dtype]:
        """Definitions of all kernels over the weight."""
        return {
            "scalar": self.scalar,
            "scale": self.scale,
            "bits": self.bits,
            "group": self.group,
            "book": self.book,
            "minimums": int(self.has_minimums),
        }


def book_kind(weight: QuantisedWeight) -> str:
    """How the kernels find what a code stands for: by counting, as a float8, or in the book."""
    if weight.zero is not None:
        return "linear"
    float8 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0.0)
    return "float8" if torch.equal(weight.book.cpu(), float8[: weight.book.numel()]) else "table"


@dataclass(frozen=True, slots=True)
class QuantisedLaunch:
    """The kernel of a product of few rows. outputs, rows: of a block."""

    variant: KernelVariant
    outputs: int
    rows: int
    threads: int = _THREADS

    def grid(self, num_outputs: int, num_rows: int) -> tuple[int, int]:
        return -(-num_outputs // self.outputs), -(-num_rows // self.rows)


def quantised_launch(shape: WeightShape, num_rows: int, properties: DeviceProperties) -> QuantisedLaunch:
    """The kernel for ``num_rows`` rows, at most FEW_ROWS."""
    is_there = properties.has_tensor_kernels and QUANTISED_MMA not in properties.avoided
    has_tensor_cores = is_there and shape.scalar in (torch.float16, torch.bfloat16)
    if has_tensor_cores and num_rows >= _TENSOR_ROWS:
        rows, outputs, step = 8 if num_rows <= 8 else FEW_ROWS, _TENSOR_OUTPUTS, 4 * shape.lane_inputs
        source = "products/quantised_mma.cu"
    else:
        rows = next((size for size in (1, 2, 4) if num_rows <= size), _MOST_SIMPLE_ROWS)
        outputs, step = 4 if rows <= 2 else 2, 32 * shape.lane_inputs
        source = "products/quantised_simple.cu"
    split = _split(shape, outputs, step, properties)
    chosen = variant(
        source,
        "quantised_product",
        **shape.defines(),
        rows=rows,
        outputs=outputs,
        split=split,
        code_bytes=shape.code_bytes,
    )
    return QuantisedLaunch(chosen, _WARPS // split * outputs, rows)


def _split(shape: WeightShape, outputs: int, step: int, properties: DeviceProperties) -> int:
    """How many warps share outputs: as many as have inputs to share, where there would be few blocks.

    outputs: of a warp; step: inputs that it multiplies at a time.
    """
    split = 1
    while split < _WARPS and 2 * split * step <= shape.num_inputs:
        blocks = -(-shape.num_outputs // (_WARPS // split * outputs))
        if blocks >= _BLOCKS_PER_MULTIPROCESSOR * properties.num_multiprocessors:
            break
        split *= 2
    return split


def widen_variant(shape: WeightShape) -> KernelVariant:
    """The kernel that widens rows of the weight."""
    return variant("products/quantised_widen.cu", "widen_rows", **shape.defines())
