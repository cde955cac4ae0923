"""The operations of ``interface.Ops`` on CUDA: float32, float16 and bfloat16 storage.

Nothing waits for the device and nothing is read back, so positions and block numbers are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvplan_engine.kernels.arguments import (
    InputRows,
    check_argmax,
    check_block_copy,
    check_gated,
    check_inputs,
    check_norm,
    check_rotation,
    check_rows,
)
from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES, check_heads, check_rotary_table, rows_are_aligned
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant, variant, write_variant
from kvplan_engine.kernels.cuda.params import (
    MOST_INPUTS,
    ActivationParams,
    ArgmaxParams,
    CopyParams,
    InputParams,
    InputRowsParams,
    NormParams,
    WriteParams,
)

# A step's inputs from pinned host memory to the device, by a kernel that reads them over the bus: one launch.


_COPY_INPUTS = KernelVariant("layers/copy_inputs.cu", "copy_inputs")
_THREADS = 256
_WORDS_OF_A_BLOCK = _THREADS * 4  # each thread has four words on their way at once
_MOST_BLOCKS = 64  # of an input: more would wait for the bus
_WORD_BYTES = 4


def copy_inputs(runtime: CudaRuntime, inputs: Sequence[InputRows], chosen: torch.Tensor | None) -> None:
    """See Ops.copy_inputs. A launch for every 32 inputs. ValueError for host memory that is not pinned."""
    check_inputs(inputs, chosen)
    if not inputs:
        return
    source = inputs[0].source  # a step's inputs lie in one piece of memory, and to ask is a call of the driver
    if source.device.type != runtime.device.type and not source.is_pinned():
        raise ValueError("a step's inputs lie in host memory that is not pinned")
    kernel = runtime.kernel(_COPY_INPUTS)
    for start in range(0, len(inputs), MOST_INPUTS):
        some = [_params_of(each) for each in inputs[start : start + MOST_INPUTS]]
        most_words = max(each.rows * each.words for each in some)
        blocks = min(_MOST_BLOCKS, -(-most_words // _WORDS_OF_A_BLOCK))
        params = InputParams(
            inputs=(InputRowsParams * MOST_INPUTS)(*some),
            chosen=None if chosen is None or start else chosen.data_ptr(),
        )
        kernel((blocks, len(some)), _THREADS, 0, params)


def _params_of(each: InputRows) -> InputRowsParams:
    """A vector is one row, so that its words are found without a division."""
    source, target = each.source, each.target
    words_of_one = source.itemsize // _WORD_BYTES
    rows, columns = (1, each.rows) if each.columns is None else (each.rows, each.columns)
    stride = 0 if each.columns is None else source.stride(0) * words_of_one
    return InputRowsParams(source.data_ptr(), target.data_ptr(), stride, rows, columns * words_of_one)


_ACTIVATION_THREADS = 256
_ARGMAX_THREADS = 1024
_COPY_THREADS = 256
_COPY_IN_FLIGHT = 4
_ROTATE_THREADS = 128
_MAX_NORM_THREADS = 512


@dataclass(frozen=True, slots=True)
class _NormInputs:
    """One norm's tensors; ``x`` is the residual when there is a ``delta``."""

    x: Tensor
    delta: Tensor | None
    weight: Tensor
    bias: Tensor | None
    out: Tensor


class CudaOps:
    """The operations on one device; ``runtime`` is the driver's, or the emulation in tests."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See Ops.rms_norm."""
        self._norm("rms_norm", _NormInputs(x, None, weight, None, out), eps)

    def add_rms_norm(self, delta: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See Ops.add_rms_norm."""
        self._norm("rms_norm", _NormInputs(residual, delta, weight, None, out), eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:
        """See Ops.layer_norm."""
        self._norm("layer_norm", _NormInputs(x, None, weight, bias, out), eps)

    def add_layer_norm(
        self, delta: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor
    ) -> None:
        """See Ops.add_layer_norm."""
        self._norm("layer_norm", _NormInputs(residual, delta, weight, bias, out), eps)

    def rope_inplace(self, x: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
        """See Ops.rope_inplace."""
        check_rotation(x, positions, cos_sin)
        check_rotary_table(cos_sin)
        tokens, heads, head_size = x.shape
        if heads > 1 and cos_sin.shape[1] <= head_size < x.stride(1):
            head_size = x.stride(1)  # a part of each head turns: to the kernel the heads begin with it
        else:
            check_heads("x", x)
        if not rows_are_aligned(x):
            raise ValueError(f"x's rows do not start at multiples of 16 bytes (strides {x.stride()})")
        chosen = write_variant(x.dtype, x.dtype, head_size, 1, cos_sin.shape[1], "rotate_heads")
        params = WriteParams(
            query=x.data_ptr(),
            positions=positions.data_ptr(),
            cos_sin=cos_sin.data_ptr(),
            query_stride=x.stride(0),
            num_tokens=tokens,
            num_query_heads=heads,
        )
        self._runtime.kernel(chosen)((tokens, 1), _ROTATE_THREADS, 0, params)

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        """See Ops.silu_and_mul."""
        check_gated(gate_up, out)
        self._activation("silu_and_mul", gate_up, out)

    def gelu_new_inplace(self, x: Tensor) -> None:
        """See Ops.gelu_new_inplace."""
        check_rows("x", x, tuple(x.shape), x.dtype)
        self._activation("gelu_tanh", x, x)

    def gelu_inplace(self, x: Tensor) -> None:
        """See Ops.gelu_inplace."""
        check_rows("x", x, tuple(x.shape), x.dtype)
        self._activation("gelu_erf", x, x)

    def argmax_rows(self, logits: Tensor, out: Tensor) -> None:
        """See Ops.argmax_rows."""
        check_argmax(logits, out)
        rows, width = logits.shape
        vectors = int(rows_are_aligned(logits))
        chosen = variant("layers/argmax.cu", "argmax_rows", scalar=logits.dtype, vectors=vectors)
        params = ArgmaxParams(logits.data_ptr(), out.data_ptr(), logits.stride(0), width)
        self._runtime.kernel(chosen)((rows, 1), _ARGMAX_THREADS, 0, params)

    def copy_blocks(self, src_kv: Tensor, dst_kv: Tensor, pairs: Tensor) -> None:
        """See Ops.copy_blocks."""
        check_block_copy(src_kv, dst_kv, pairs)
        for name, tensor in (("src_kv", src_kv), ("dst_kv", dst_kv)):
            self._check_reachable(name, tensor)
        block_bytes = src_kv.stride(0) * src_kv.element_size()
        if block_bytes % VECTOR_BYTES:
            raise ValueError(f"a block of {block_bytes} bytes is not a multiple of {VECTOR_BYTES}")
        on_device = pairs.to(self._runtime.device, non_blocking=True)
        vectors = block_bytes // VECTOR_BYTES
        blocks_per_pair = max(1, min(64, -(-vectors // (_COPY_THREADS * _COPY_IN_FLIGHT))))
        params = CopyParams(src_kv.data_ptr(), dst_kv.data_ptr(), on_device.data_ptr(), vectors)
        grid = (pairs.shape[0], blocks_per_pair)
        self._runtime.kernel(variant("attention/cache/copy_blocks.cu", "copy_blocks"))(grid, _COPY_THREADS, 0, params)

    def copy_inputs(self, inputs: Sequence[InputRows], chosen: Tensor | None) -> None:
        """See Ops.copy_inputs."""
        copy_inputs(self._runtime, inputs, chosen)

    def _check_reachable(self, name: str, tensor: Tensor) -> None:
        if tensor.device.type != self._runtime.device.type and not tensor.is_pinned():
            raise ValueError(f"{name} lies in host memory that is not pinned")

    def _norm(self, kernel: str, inputs: _NormInputs, eps: float) -> None:
        x, delta, bias = inputs.x, inputs.delta, inputs.bias
        check_norm(x, delta, inputs.weight, bias, inputs.out)
        vectors = _norm_takes_vectors(inputs)
        width = x.shape[-1]
        params = NormParams(
            delta=None if delta is None else delta.data_ptr(),
            x=x.data_ptr(),
            weight=inputs.weight.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            out=inputs.out.data_ptr(),
            delta_stride=0 if delta is None else delta.stride(0),
            x_stride=x.stride(0),
            out_stride=inputs.out.stride(0),
            epsilon=eps,
        )
        threads = norm_threads(width, x.element_size() if vectors else VECTOR_BYTES)
        chosen = variant(
            "layers/norm.cu",
            kernel,
            scalar=x.dtype,
            width=width,
            threads=threads,
            delta=int(delta is not None),
            vectors=int(vectors),
        )
        heads = x.shape[1] if x.dim() == 3 else 1
        self._runtime.kernel(chosen)((x.shape[0], heads), threads, 0, params)

    def _activation(self, kernel: str, x: Tensor, out: Tensor) -> None:
        rows, width = out.shape
        vectors = rows_are_aligned(x) and rows_are_aligned(out) and width * out.element_size() % VECTOR_BYTES == 0
        elements = VECTOR_BYTES // out.element_size() if vectors else 1
        chosen = variant("layers/activation.cu", kernel, scalar=x.dtype, vectors=int(vectors))
        params = ActivationParams(x.data_ptr(), out.data_ptr(), x.stride(0), out.stride(0), width)
        self._runtime.kernel(chosen)(
            (rows, -(-width // (_ACTIVATION_THREADS * elements))), _ACTIVATION_THREADS, 0, params
        )


def _norm_takes_vectors(inputs: _NormInputs) -> bool:
    """Whether every row of every tensor starts at a multiple of 16 bytes and has whole vectors."""
    rows_of = [tensor for tensor in (inputs.x, inputs.delta, inputs.out) if tensor is not None]
    vectors_of = [tensor for tensor in (inputs.weight, inputs.bias) if tensor is not None]
    whole = inputs.x.shape[-1] * inputs.x.element_size() % VECTOR_BYTES == 0
    aligned = all(tensor.data_ptr() % VECTOR_BYTES == 0 for tensor in vectors_of)
    return whole and aligned and all(rows_are_aligned(tensor) for tensor in rows_of)


def norm_threads(width: int, element_bytes: int) -> int:
    """Threads of a norm's block: one vector of 16 bytes each, in whole warps, up to 512."""
    per_row = -(-width * element_bytes // VECTOR_BYTES)
    return min(_MAX_NORM_THREADS, -(-per_row // 32) * 32)
