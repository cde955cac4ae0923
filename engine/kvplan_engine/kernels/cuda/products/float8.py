"""Products of many rows with FP8 weights, in float8 on both sides: torch's, over rows rounded by a kernel of ours.

For weights with one scale for each output, or for all, of checkpoints that say that inputs are rounded too. torch has
the product from compute capability 8.9 on.
"""

from __future__ import annotations

import torch

from kvplan_engine.kernels.cuda.checks import rows_are_aligned
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime, DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant, variant
from kvplan_engine.kernels.cuda.params.products import QuantiseParams
from kvplan_engine.kernels.cuda.products.quantised_launch import book_kind
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

_CAPABILITY = (8, 9)
_MULTIPLE = 16  # of inputs and outputs, which torch._scaled_mm asks for
_THREADS = 256  # quantise_rows.cu: THREADS


def multiplies_float8(weight: QuantisedWeight, scalar: torch.dtype, properties: DeviceProperties) -> bool:
    """Whether torch._scaled_mm takes the codes as they are, and the checkpoint means it so."""
    plain = weight.rounds_inputs and weight.minimums is None and weight.order is None
    if not plain or scalar is not torch.bfloat16 or properties.capability < _CAPABILITY:
        return False
    whole = weight.num_inputs % _MULTIPLE == 0 and weight.num_outputs % _MULTIPLE == 0
    return (
        whole
        and book_kind(weight) == "float8"
        and torch.equal(weight.scales, weight.scales[:, :1].expand_as(weight.scales))
    )


class Float8Product:
    """x @ weight.T + bias for a weight that ``multiplies_float8``, rows of x rounded in ``memory``."""

    def __init__(
        self, runtime: CudaRuntime, memory: StepMemory, weight: QuantisedWeight, bias: torch.Tensor | None
    ) -> None:
        self._runtime, self._memory, self._bias = runtime, memory, bias
        self._transposed = weight.codes.view(torch.float8_e4m3fn).t()
        self._scales = weight.scales[:, :1].float().t().contiguous()

    def takes(self, x: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether torch can write to ``out``, and the kernel read x."""
        return out.is_contiguous() and rows_are_aligned(x)

    def multiply(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """x [T, inputs] bfloat16, out [T, outputs]."""
        num_inputs = x.shape[1]
        step = self._memory.most_rows(num_inputs + torch.float32.itemsize, torch.uint8)
        for first in range(0, x.shape[0], step):
            rows = x[first : first + step]
            codes, scales = self._rounded(rows)
            torch._scaled_mm(
                codes,
                self._transposed,
                scales,
                self._scales,
                bias=self._bias,
                out_dtype=out.dtype,
                out=out[first : first + step],
            )

    def _rounded(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x in float8 [T, inputs], and the scale of each row [T, 1]."""
        num_rows, num_inputs = x.shape
        count = num_rows * num_inputs  # a multiple of 16, so the scales behind are aligned
        room = self._memory.matrix(1, count + num_rows * torch.float32.itemsize, torch.uint8)[0]
        codes = room[:count].view(torch.float8_e4m3fn).view(num_rows, num_inputs)
        scales = room[count:].view(torch.float32).view(num_rows, 1)
        params = QuantiseParams(x.data_ptr(), codes.data_ptr(), scales.data_ptr(), x.stride(0), num_inputs)
        self._runtime.kernel(quantise_variant(x.dtype))((num_rows, 1), _THREADS, 0, params)
        return codes, scales


def quantise_variant(scalar: torch.dtype) -> KernelVariant:
    """The kernel that rounds rows."""
    return variant("products/quantise_rows.cu", "quantise_rows", scalar=scalar)
