"""Products with quantised weights on a CUDA device (csrc/cuda/products/quantised*.cu): nothing waits or is read back.

Few rows are multiplied with the codes. For more, some rows of the weight at a time are widened into the workspace, and
torch multiplies with these; FP8 weights are multiplied as they are where that is possible (``float8``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.kernels.arguments import check_rows
from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES, rows_are_aligned
from kvplan_engine.kernels.cuda.launching.families import QUANTISED_MMA
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime, DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant, variant
from kvplan_engine.kernels.cuda.params import QuantisedParams, WidenParams
from kvplan_engine.kernels.cuda.products.float8 import book_kind, float8_product
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.quantised_weight import LARGEST_GROUP, QuantisedWeight

# How the products with quantised weights are compiled and launched on a device: pure arithmetic.


FEW_ROWS = 16
"""Up to so many rows are multiplied with the codes; for more, rows of the weight are widened and torch multiplies."""

_QUANTISED_THREADS = 128  # quantised_simple.cu and quantised_mma.cu: THREADS
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


@dataclass(frozen=True, slots=True)
class QuantisedLaunch:
    """The kernel of a product of few rows. outputs, rows: of a block."""

    variant: KernelVariant
    outputs: int
    rows: int
    threads: int = _QUANTISED_THREADS

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


_WIDEN_INPUTS = 256 * 8  # quantised_widen.cu: THREADS * PIECE
_WIDEN_THREADS = 256


class CudaQuantised:
    """One weight and its product, a ``Projection`` of ``layers``. runtime: the device, or the emulation in tests."""

    __slots__ = ("_bias", "_float8", "_memory", "_runtime", "_shape", "_weight", "_zero")
    activation = None
    layer_args = None

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
        self._float8 = float8_product(runtime, memory, weight, bias, scalar)
        for name, part in (("codes", weight.codes), ("scales", weight.scales), ("minimums", weight.minimums)):
            if part is not None and not (part.is_contiguous() and part.data_ptr() % VECTOR_BYTES == 0):
                raise ValueError(f"{name} are not contiguous from a multiple of {VECTOR_BYTES} bytes on")

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
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
