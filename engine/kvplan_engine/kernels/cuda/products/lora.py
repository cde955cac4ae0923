"""What LoRA adapters add to a product, on a CUDA device (products/lora*.cu): nothing waits or is read back."""

from __future__ import annotations

from itertools import accumulate

import torch

from kvplan_engine.kernels.arguments import check_rows
from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES, rows_are_aligned
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant, variant
from kvplan_engine.kernels.cuda.params import MOST_STACKED, LoraParams
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.lora import LoraRows, LoraWeights
from kvplan_engine.kernels.workspace_sizes import ROWS_OF_A_GROUP

_THREADS = 128  # lora_shrink.cu and lora_expand.cu: THREADS
_MANY_GROUPS = 16  # from here on there are blocks enough, and reading x less often counts


class CudaLora:
    """The operation ``kernels.lora.Correct``. ``memory`` holds x A^T, of some groups at a time."""

    def __init__(self, runtime: CudaRuntime, memory: StepMemory) -> None:
        self._runtime, self._memory = runtime, memory

    def __call__(self, x: torch.Tensor, out: torch.Tensor, weights: LoraWeights, rows: LoraRows) -> None:
        """See ``kernels.lora.Correct``; ValueError for tensors that do not fit. Groups in slot -1 are left out."""
        dtype, num_rows = weights.down.dtype, x.shape[0]
        check_rows("x", x, (num_rows, weights.down.shape[2]), dtype)
        check_rows("out", out, (num_rows, weights.up.shape[2]), dtype)
        columns = weights.down.shape[1] * ROWS_OF_A_GROUP
        step = self._memory.most_rows(columns, torch.float32)
        for first in range(0, rows.slots.shape[0], step):
            part = LoraRows(rows.rows[first : first + step], rows.slots[first : first + step])
            self._correct(x, out, weights, part, self._memory.matrix(len(part.slots), columns, torch.float32))

    def _correct(
        self, x: torch.Tensor, out: torch.Tensor, weights: LoraWeights, rows: LoraRows, inner: torch.Tensor
    ) -> None:
        num_groups, num_inner, num_outputs = len(rows.slots), weights.down.shape[1], weights.up.shape[2]
        params = LoraParams(
            x=x.data_ptr(),
            down=weights.down.data_ptr(),
            up=weights.up.data_ptr(),
            inner=inner.data_ptr(),
            out=out.data_ptr(),
            rows=rows.rows.data_ptr(),
            slots=rows.slots.data_ptr(),
            x_stride=x.stride(0),
            out_stride=out.stride(0),
            inputs=weights.down.shape[2],
            outputs=num_outputs,
            rank=weights.rank,
            stacked=len(weights.segments),
            ends=_ends(weights.segments),
        )
        shrink_outputs = 4 if num_groups >= _MANY_GROUPS else 1
        shrink = shrink_variant(x.dtype, rows_are_aligned(x) and _whole_vectors(weights.down), shrink_outputs)
        self._runtime.kernel(shrink)((-(-num_inner // shrink_outputs), num_groups), _THREADS, 0, params)
        has_vectors = rows_are_aligned(out) and _whole_vectors(weights.up, *weights.segments)
        outputs = _THREADS * (VECTOR_BYTES // x.dtype.itemsize if has_vectors else 1)
        expand = expand_variant(x.dtype, has_vectors)
        self._runtime.kernel(expand)((-(-num_outputs // outputs), num_groups), _THREADS, 0, params)


def shrink_variant(scalar: torch.dtype, has_vectors: bool, outputs: int) -> KernelVariant:
    """x A^T: ``outputs`` rows of A for each block."""
    return variant("products/lora_shrink.cu", "lora_shrink", scalar=scalar, vectors=int(has_vectors), outputs=outputs)


def expand_variant(scalar: torch.dtype, has_vectors: bool) -> KernelVariant:
    """out += (x A^T) B."""
    return variant("products/lora_expand.cu", "lora_expand", scalar=scalar, vectors=int(has_vectors))


def _ends(segments: tuple[int, ...]) -> tuple[int, ...]:
    if len(segments) > MOST_STACKED:
        raise ValueError(f"{len(segments)} products are stacked; the kernels take {MOST_STACKED}")
    return tuple(accumulate(segments))


def _whole_vectors(weights: torch.Tensor, *lengths: int) -> bool:
    """Whether rows of ``weights``, and parts of these of such lengths, are vectors of 16 bytes."""
    whole = all(length * weights.element_size() % VECTOR_BYTES == 0 for length in (weights.shape[-1], *lengths))
    return whole and weights.data_ptr() % VECTOR_BYTES == 0
