"""Products of few rows with a weight as published (csrc/cuda/products/skinny_mma.cu): nothing waits or is read back."""

from __future__ import annotations

import torch

from kvplan_engine.kernels.arguments import check_rows, check_vector
from kvplan_engine.kernels.cuda.checks import rows_are_aligned
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.params.products import SkinnyParams
from kvplan_engine.kernels.cuda.products.skinny_launch import (
    MOST_ROWS,
    SkinnyShape,
    multiplies_few_rows,
    skinny_launch,
)


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
