"""Products of many rows with FP8 weights, in float8 on both sides: nothing is widened.

For checkpoints that say that inputs are rounded too. With one scale for each output, or for all, torch multiplies; with
scales of blocks of 128 x 128 (DeepSeek's) a kernel of ours (csrc/cuda/products/float8_mma.cu). Rows of x are rounded by
one too, each by a scale of its own, or each 128 inputs of it. Tensor cores take float8 from compute capability 8.9 on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.kernels.cuda.checks import rows_are_aligned
from kvplan_engine.kernels.cuda.launching.families import FLOAT8_MMA, FLOAT8_SHORT
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime, DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant, variant
from kvplan_engine.kernels.cuda.params import Float8Params, QuantiseParams
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

_CAPABILITY = (8, 9)
_MULTIPLE = 16  # of inputs and outputs, which torch._scaled_mm asks for
_QUANTISE_THREADS = 256  # quantise_rows.cu: THREADS
_QUANTISE_VECTOR = 8  # its VECTOR, of 16 bits
BLOCK = 128
"""float8_mma.cu: GROUP, inputs and outputs that share a scale."""


def book_kind(weight: QuantisedWeight) -> str:
    """How the kernels find what a code stands for: by counting, as a float8, or in the book."""
    if weight.zero is not None:
        return "linear"
    float8 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0.0)
    return "float8" if torch.equal(weight.book.cpu(), float8[: weight.book.numel()]) else "table"


def _is_plain_float8(weight: QuantisedWeight, properties: DeviceProperties) -> bool:
    """Whether the codes can be multiplied as they are, and the checkpoint means it so."""
    plain = weight.rounds_inputs and weight.minimums is None and weight.order is None
    whole = weight.num_inputs % _MULTIPLE == 0 and weight.num_outputs % _MULTIPLE == 0
    return plain and whole and properties.capability >= _CAPABILITY and book_kind(weight) == "float8"


def multiplies_float8(weight: QuantisedWeight, scalar: torch.dtype, properties: DeviceProperties) -> bool:
    """Whether torch._scaled_mm takes the weight: one scale for each output."""
    if scalar is not torch.bfloat16 or not _is_plain_float8(weight, properties):
        return False
    return torch.equal(weight.scales, weight.scales[:, :1].expand_as(weight.scales))


def multiplies_blocks(weight: QuantisedWeight, scalar: torch.dtype, properties: DeviceProperties) -> bool:
    """Whether float8_mma.cu takes the weight: one scale for each block, from the first output on."""
    is_sixteen = scalar in (torch.float16, torch.bfloat16) and weight.scales.dtype is torch.float32
    if not is_sixteen or weight.group_size != BLOCK:
        return False
    first = torch.arange(weight.num_outputs, device=weight.scales.device) // BLOCK * BLOCK
    return torch.equal(weight.scales, weight.scales[first]) and _is_plain_float8(weight, properties)


class Float8Rows:
    """A product of rows of x that are rounded in ``memory``. group: inputs that share a scale; None: all of a row."""

    group: int | None = None

    def __init__(
        self, runtime: CudaRuntime, memory: StepMemory, weight: QuantisedWeight, bias: torch.Tensor | None
    ) -> None:
        self._runtime, self._memory, self._bias = runtime, memory, bias

    def multiply(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """x [T, inputs] in 16 bits, out [T, outputs]; as many rows at a time as there is memory for."""
        num_inputs = x.shape[1]
        num_scales = num_inputs // (self.group or num_inputs)
        step = self._memory.most_rows(num_inputs + num_scales * torch.float32.itemsize, torch.uint8)
        for first in range(0, x.shape[0], step):
            codes, scales = self._rounded(x[first : first + step], num_scales)
            self._product(codes, scales, out[first : first + step], x.shape[0])

    def _product(self, codes: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, all_rows: int) -> None:
        """Some rows of out, of ``all_rows``."""
        raise NotImplementedError

    def _rounded(self, x: torch.Tensor, num_scales: int) -> tuple[torch.Tensor, torch.Tensor]:
        """x in float8 [T, inputs], and the scales of each row [T, num_scales]."""
        num_rows, num_inputs = x.shape
        count = num_rows * num_inputs  # a multiple of 16, so the scales behind are aligned
        room = self._memory.matrix(1, count + num_rows * num_scales * torch.float32.itemsize, torch.uint8)[0]
        codes = room[:count].view(torch.float8_e4m3fn).view(num_rows, num_inputs)
        scales = room[count:].view(torch.float32).view(num_rows, num_scales)
        params = QuantiseParams(x.data_ptr(), codes.data_ptr(), scales.data_ptr(), x.stride(0), num_inputs)
        blocks = 1 if self.group is None else -(-num_inputs // (_QUANTISE_THREADS * _QUANTISE_VECTOR))
        chosen = quantise_variant(x.dtype, self.group)
        self._runtime.kernel(chosen)((num_rows, blocks), _QUANTISE_THREADS, 0, params)
        return codes, scales


class Float8Product(Float8Rows):
    """x @ weight.T + bias by torch for a weight that ``multiplies_float8``."""

    def __init__(
        self, runtime: CudaRuntime, memory: StepMemory, weight: QuantisedWeight, bias: torch.Tensor | None
    ) -> None:
        super().__init__(runtime, memory, weight, bias)
        self._transposed = weight.codes.view(torch.float8_e4m3fn).t()
        self._scales = weight.scales[:, :1].float().t().contiguous()

    def takes(self, x: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether torch can write to ``out``, and the kernel read x."""
        return out.is_contiguous() and rows_are_aligned(x)

    def _product(self, codes: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, all_rows: int) -> None:
        given = (codes, self._transposed, scales, self._scales)
        torch._scaled_mm(*given, bias=self._bias, out_dtype=out.dtype, out=out)


class Float8Blocks(Float8Rows):
    """x @ weight.T + bias by float8_mma.cu for a weight that ``multiplies_blocks``."""

    group = BLOCK

    def __init__(
        self, runtime: CudaRuntime, memory: StepMemory, weight: QuantisedWeight, bias: torch.Tensor | None
    ) -> None:
        super().__init__(runtime, memory, weight, bias)
        self._weight = weight

    def takes(self, x: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether the kernel for so many rows is used, and can read x and write to ``out`` in vectors."""
        properties = self._runtime.properties
        family = float8_launch(out.dtype, out.shape[0], out.shape[1], properties).family
        return family not in properties.avoided and rows_are_aligned(out) and rows_are_aligned(x)

    def _product(self, codes: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, all_rows: int) -> None:
        num_rows, num_outputs = out.shape
        launch = float8_launch(out.dtype, all_rows, num_outputs, self._runtime.properties)  # as ``takes`` has it
        params = Float8Params(
            x=codes.data_ptr(),
            x_scales=scales.data_ptr(),
            weight=self._weight.codes.data_ptr(),
            weight_scales=self._weight.scales.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            out=out.data_ptr(),
            out_stride=out.stride(0),
            inputs=self._weight.num_inputs,
            outputs=num_outputs,
            rows=num_rows,
        )
        grid = (-(-num_rows // launch.rows), -(-num_outputs // launch.outputs))
        self._runtime.kernel(launch.variant)(grid, launch.threads, launch.shared_bytes, params)


def float8_product(
    runtime: CudaRuntime, memory: StepMemory, weight: QuantisedWeight, bias: torch.Tensor | None, scalar: torch.dtype
) -> Float8Product | Float8Blocks | None:
    """The product of many rows with ``weight`` as it is; None where it has to be widened."""
    if multiplies_float8(weight, scalar, runtime.properties):
        return Float8Product(runtime, memory, weight, bias)
    if multiplies_blocks(weight, scalar, runtime.properties):
        return Float8Blocks(runtime, memory, weight, bias)
    return None


@dataclass(frozen=True, slots=True)
class Float8Launch:
    """The kernel of float8_mma.cu. rows, outputs: of a block."""

    variant: KernelVariant
    rows: int
    outputs: int
    threads: int
    shared_bytes: int

    @property
    def family(self) -> str:
        """Tiles of 128 rows, and others, are checked and timed apart."""
        return FLOAT8_MMA if self.rows == _LARGE else FLOAT8_SHORT


_LARGE = 128


def float8_launch(scalar: torch.dtype, num_rows: int, num_outputs: int, properties: DeviceProperties) -> Float8Launch:
    """Tiles of 128 x 128 where there are enough to keep the device busy, else of 64 x 64, or 32 for as few rows."""
    num_tiles = -(-num_rows // _LARGE) * -(-num_outputs // _LARGE)
    is_large = num_rows > 64 and 2 * num_tiles > properties.num_multiprocessors
    rows, outputs, threads = (_LARGE, _LARGE, 256) if is_large else (32 if num_rows <= 32 else 64, 64, 128)
    stage_bytes = (rows + outputs) * (BLOCK + 16)  # float8_mma.cu: STAGE_BYTES
    stages = min(4, properties.shared_bytes_per_block // stage_bytes)
    is_native = properties.capability == (8, 9) or properties.capability >= (12, 0)
    options = {"rows": rows, "stages": stages, "native": int(is_native)}
    chosen = variant("products/float8_mma.cu", "float8_product", scalar=scalar, **options)
    return Float8Launch(chosen, rows, outputs, threads, stages * stage_bytes)


def quantise_variant(scalar: torch.dtype, group: int | None = None) -> KernelVariant:
    """The kernel that rounds rows, or groups of their inputs."""
    optional = {} if group is None else {"group": group}
    return variant("products/quantise_rows.cu", "quantise_rows", scalar=scalar, **optional)
