"""Products with quantised weights on a CUDA device (csrc/cuda/products/quantised*.cu): nothing waits or is read back.

Few rows are multiplied with the codes. For more, some rows of the weight at a time are widened into the workspace, and
torch multiplies with these; FP8 weights it multiplies as they are where it can (``float8``).
"""

from __future__ import annotations

import torch

from kvplan_engine.kernels.arguments import check_rows
from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES, rows_are_aligned
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.params.products import QuantisedParams, WidenParams
from kvplan_engine.kernels.cuda.products.float8 import Float8Product, multiplies_float8
from kvplan_engine.kernels.cuda.products.quantised_launch import FEW_ROWS, WeightShape, quantised_launch, widen_variant
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

_WIDEN_INPUTS = 256 * 8  # quantised_widen.cu: THREADS * PIECE
_WIDEN_THREADS = 256


class CudaQuantised:
    """One weight and its product. ``runtime`` is the device, or the emulation in tests."""

    __slots__ = ("_bias", "_float8", "_memory", "_runtime", "_shape", "_weight", "_zero")

    def __init__(
        self,
        runtime: CudaRuntime,
        memory: StepMemory,
        weight: QuantisedWeight,
        bias: torch.Tensor | None,
        scalar: torch.dtype,
    ) -> None:
        self._runtime, self._memory, self._weight, self._bias = runtime, memory, weight, bias
        self._shape = WeightShape.of(weight, scalar)
        self._zero = float(weight.zero or 0)
        self._float8: Float8Product | None = None
        if multiplies_float8(weight, scalar, runtime.properties):
            self._float8 = Float8Product(runtime, memory, weight, bias)
        for name, part in (("codes", weight.codes), ("scales", weight.scales), ("minimums", weight.minimums)):
            if part is not None and not (part.is_contiguous() and part.data_ptr() % VECTOR_BYTES == 0):
                raise ValueError(f"{name} are not contiguous from a multiple of {VECTOR_BYTES} bytes on")

    def multiply(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """out [T, outputs] = x [T, inputs] @ weight.T + bias; rows of both may be strided."""
        check_rows("x", x, (x.shape[0], self._weight.num_inputs), self._shape.scalar)
        check_rows("out", out, (x.shape[0], self._weight.num_outputs), self._shape.scalar)
        if x.shape[0] <= FEW_ROWS:
            self._multiply_codes(x, out)
        elif self._float8 is not None and self._float8.takes(x, out):
            self._float8.multiply(x, out)
        else:
            self._multiply_widened(x, out)

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """out [T, inputs] = weight[indices] for indices [T] int64, each a row of the weight."""
        check_rows("out", out, (indices.shape[0], self._weight.num_inputs), self._shape.scalar)
        self._widen(out, indices=indices.contiguous())

    def _multiply_codes(self, x: torch.Tensor, out: torch.Tensor) -> None:
        num_rows, weight = x.shape[0], self._weight
        if num_rows == 0:
            return
        if weight.order is not None or not rows_are_aligned(x):
            moved = self._memory.matrix(num_rows, weight.num_inputs, x.dtype)
            if weight.order is None:
                moved.copy_(x)
            else:
                torch.index_select(x, 1, weight.order, out=moved)
            x = moved
        launch = quantised_launch(self._shape, num_rows, self._runtime.properties)
        params = QuantisedParams(
            x=x.data_ptr(),
            **self._places(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            out=out.data_ptr(),
            x_stride=x.stride(0),
            out_stride=out.stride(0),
            inputs=weight.num_inputs,
            outputs=weight.num_outputs,
            rows=num_rows,
            zero=self._zero,
        )
        grid = launch.grid(weight.num_outputs, num_rows)
        self._runtime.kernel(launch.variant)(grid, launch.threads, 0, params)

    def _multiply_widened(self, x: torch.Tensor, out: torch.Tensor) -> None:
        num_outputs, dtype = self._weight.num_outputs, self._shape.scalar
        step = min(num_outputs, self._memory.most_rows(self._weight.num_inputs, dtype))
        for first in range(0, num_outputs, step):
            last = min(first + step, num_outputs)
            wide = self._memory.matrix(last - first, self._weight.num_inputs, dtype)
            self._widen(wide, first=first)
            if self._bias is None:
                torch.mm(x, wide.t(), out=out[:, first:last])
            else:
                torch.addmm(self._bias[first:last], x, wide.t(), out=out[:, first:last])

    def _widen(self, out: torch.Tensor, first: int = 0, indices: torch.Tensor | None = None) -> None:
        """out: rows of the weight, ``indices`` of it or those from ``first`` on, the inputs in the order of x."""
        weight = self._weight
        if weight.order is None and not rows_are_aligned(out):
            raise ValueError(f"out's rows do not start at multiples of {VECTOR_BYTES} bytes")
        params = WidenParams(
            **self._places(),
            indices=None if indices is None else indices.data_ptr(),
            order=None if weight.order is None else weight.order.data_ptr(),
            out=out.data_ptr(),
            out_stride=out.stride(0),
            inputs=weight.num_inputs,
            first_output=first,
            zero=self._zero,
        )
        grid = (out.shape[0], -(-weight.num_inputs // _WIDEN_INPUTS))
        self._runtime.kernel(widen_variant(self._shape))(grid, _WIDEN_THREADS, 0, params)

    def _places(self) -> dict[str, int | None]:
        """The addresses of codes, scales, minimums and book."""
        weight = self._weight
        return {
            "codes": weight.codes.data_ptr(),
            "scales": weight.scales.data_ptr(),
            "minimums": None if weight.minimums is None else weight.minimums.data_ptr(),
            "book": weight.book.data_ptr(),
        }
