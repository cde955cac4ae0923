"""How a product of few rows is compiled and launched for its sizes on a device: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES
from kvplan_engine.kernels.cuda.launching.runtime import DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant, variant

MOST_ROWS = 16
"""skinny_mma.cu: columns of two tiles of its products."""
ACTIVATIONS = {
    "silu_and_mul": ("silu", True),
    "gelu_and_mul": ("gelu", True),
    "gelu_tanh_and_mul": ("gelu_tanh", True),
    "relu_and_mul": ("relu", True),
    "silu": ("silu", False),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_tanh", False),
    "relu": ("relu", False),
    "relu2": ("relu2", False),
}
"""What can follow a product, by the names of ``layers.activation``: activate.cuh's name of it, whether it is gated."""

_THREADS = 128
_WARPS = 4
_SHARED_BYTES = _WARPS * 4 * 4096  # skinny_mma.cu: STAGES steps of each warp
_TILE = 16  # rows of the weight
_SPAN = 128
_MOST_SPLITS = 8
_TILES_PER_MULTIPROCESSOR = 1.5


@dataclass(frozen=True, slots=True)
class SkinnyShape:
    """One weight [outputs, inputs], twice as many rows where gated; activation: one of ACTIVATIONS, or None."""

    scalar: torch.dtype
    outputs: int
    inputs: int
    activation: str | None = None

    @property
    def is_gated(self) -> bool:
        """Whether an output takes two rows of the weight."""
        return self.activation is not None and ACTIVATIONS[self.activation][1]

    @property
    def weight_rows(self) -> int:
        return self.outputs * (2 if self.is_gated else 1)


@dataclass(frozen=True, slots=True)
class SkinnyLaunch:
    """One product's kernel. grid: tiles of outputs, and blocks that share the inputs of each; spans: of such a block.

    sums: that each block leaves for the others of its tile.
    """

    variant: KernelVariant
    grid: tuple[int, int]
    spans: int
    sums: int
    threads: int = _THREADS
    shared_bytes: int = _SHARED_BYTES


def multiplies_few_rows(weight: torch.Tensor, properties: DeviceProperties) -> bool:
    """Whether the kernel multiplies with ``weight`` as it lies in memory."""
    is_narrow = properties.has_tensor_kernels and weight.dtype in (torch.float16, torch.bfloat16)
    has_vectors = weight.shape[1] * weight.dtype.itemsize % VECTOR_BYTES == 0 and weight.data_ptr() % VECTOR_BYTES == 0
    return is_narrow and has_vectors and weight.is_contiguous()


def skinny_launch(shape: SkinnyShape, num_rows: int, properties: DeviceProperties) -> SkinnyLaunch:
    """The kernel for ``num_rows`` rows, at most MOST_ROWS. How inputs are divided does not depend on their number."""
    rows = 8 if num_rows <= 8 else MOST_ROWS
    activation, is_gated = ("none", False) if shape.activation is None else ACTIVATIONS[shape.activation]
    chosen = variant(
        "products/skinny_mma.cu",
        "skinny_product",
        scalar=shape.scalar,
        rows=rows,
        activation=activation,
        gated=int(is_gated),
    )
    block_rows = _TILE * rows // 8
    spans = _spans_of_block(shape, properties)
    splits = -(-shape.inputs // (spans * _SPAN))
    return SkinnyLaunch(chosen, (-(-shape.weight_rows // block_rows), splits), spans, block_rows * rows)


def _spans_of_block(shape: SkinnyShape, properties: DeviceProperties) -> int:
    """All of a row's, or where there would be few blocks a part of them, of which each warp has one at least."""
    tiles, spans = -(-shape.weight_rows // _TILE), -(-shape.inputs // _SPAN)
    splits = 1
    while (
        splits < _MOST_SPLITS
        and tiles * splits < _TILES_PER_MULTIPROCESSOR * properties.num_multiprocessors
        and spans >= 2 * splits * _WARPS
    ):
        splits *= 2
    return -(-spans // splits)
