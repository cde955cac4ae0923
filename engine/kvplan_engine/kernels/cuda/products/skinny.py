"""Products of few rows with a weight as published (csrc/cuda/products/skinny_mma.cu): nothing waits or is read back."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.kernels.arguments import check_rows, check_vector
from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES, rows_are_aligned
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime, DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant, variant
from kvplan_engine.kernels.cuda.params import SkinnyParams

# How a product of few rows is compiled and launched for its sizes on a device: pure arithmetic.


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


class SkinnyMemory:
    """What blocks that share a product's inputs leave for one another; grows, never shrinks.

    What is outgrown is kept: a captured graph may still use it.
    """

    def __init__(self, device: torch.device) -> None:
        self._parts = torch.empty(0, dtype=torch.float32, device=device)
        self._finished = torch.empty(0, dtype=torch.int32, device=device)
        self._outgrown: list[torch.Tensor] = []

    def take(self, num_sums: int, num_tiles: int) -> tuple[int, int]:
        """Addresses of so many float32 and of an int32, zero between launches, for each tile."""
        self._parts, self._finished = self._grown(self._parts, num_sums), self._grown(self._finished, num_tiles)
        return self._parts.data_ptr(), self._finished.data_ptr()

    def _grown(self, tensor: torch.Tensor, count: int) -> torch.Tensor:
        if tensor.numel() >= count:
            return tensor
        self._outgrown.append(tensor)
        return torch.zeros(count, dtype=tensor.dtype, device=tensor.device)


class CudaSkinny:
    """The products on one device; ``runtime`` is the driver's, or the emulation in tests."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self.runtime = runtime
        self._memory = SkinnyMemory(runtime.device)

    def takes(self, x: torch.Tensor) -> bool:
        """Whether the kernel multiplies these rows: 1 to MOST_ROWS of whole vectors."""
        return 0 < x.shape[0] <= MOST_ROWS and rows_are_aligned(x)

    def multiply(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
        *,
        activation: str | None = None,
        residual: torch.Tensor | None = None,
    ) -> None:
        """out [T, outputs] = activation(x [T, inputs] @ weight.T + bias) + residual, in float32 and rounded once.

        weight [outputs, inputs] and bias [outputs] as ``multiplies_few_rows`` has them; twice the outputs, the gates
        first, with an activation that is gated. residual [T, outputs] may be out. x as ``takes`` has it. ValueError
        for tensors that do not fit.
        """
        shape = SkinnyShape(weight.dtype, out.shape[1], weight.shape[1], activation)
        rows = (x.shape[0], shape.outputs)
        check_rows("weight", weight, (shape.weight_rows, shape.inputs), shape.scalar)
        if not multiplies_few_rows(weight, self.runtime.properties):
            raise ValueError(f"weight is no matrix that the kernel takes: {weight.dtype} {tuple(weight.shape)}")
        check_rows("x", x, (x.shape[0], shape.inputs), shape.scalar)
        check_rows("out", out, rows, shape.scalar)
        if bias is not None:
            check_vector("bias", bias, shape.weight_rows, shape.scalar)
        if residual is not None:
            check_rows("residual", residual, rows, shape.scalar)
        if not self.takes(x):
            raise ValueError(f"x is {tuple(x.shape)} with strides {x.stride()}, wanted 1 to {MOST_ROWS} aligned rows")
        launch = skinny_launch(shape, x.shape[0], self.runtime.properties)
        tiles, splits = launch.grid
        parts, finished = self._memory.take(tiles * splits * launch.sums, tiles) if splits > 1 else (None, None)
        params = SkinnyParams(
            x=x.data_ptr(),
            weight=weight.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            residual=None if residual is None else residual.data_ptr(),
            out=out.data_ptr(),
            parts=parts,
            finished=finished,
            x_stride=x.stride(0),
            residual_stride=0 if residual is None else residual.stride(0),
            out_stride=out.stride(0),
            inputs=shape.inputs,
            outputs=shape.outputs,
            rows=x.shape[0],
            spans=launch.spans,
            is_early=int(self.runtime.overlaps_launches),
        )
        self.runtime.kernel(launch.variant)(launch.grid, launch.threads, launch.shared_bytes, params)
