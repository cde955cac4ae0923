"""The engine's operations outside attention and matrix products, on CUDA: the functions of ``ops`` as methods.

Float32, float16 and bfloat16 storage, float32 maths, rounded once. Rows may be strided; the last dimension is
contiguous. Nothing waits for the device and nothing is read back, so positions and block numbers are not checked.
Arguments of the wrong shape, dtype or stride raise ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.kernels.cuda.checks import check_rotary
from kvplan_engine.kernels.cuda.params import ActivationParams, ArgmaxParams, CopyParams, NormParams, WriteParams
from kvplan_engine.kernels.cuda.runtime import CudaRuntime, Kernel
from kvplan_engine.kernels.cuda.variants import variant, write_variant

VECTOR_BYTES = 16
_ACTIVATION_THREADS = 256
_ARGMAX_THREADS = 1024
_COPY_THREADS = 256
_COPY_IN_FLIGHT = 4
_ROTATE_THREADS = 128
_MAX_NORM_THREADS = 512


@dataclass(frozen=True, slots=True)
class _NormInputs:
    """One norm's tensors; ``x`` is the residual when there is a ``delta``."""

    x: torch.Tensor
    delta: torch.Tensor | None
    weight: torch.Tensor
    bias: torch.Tensor | None
    out: torch.Tensor


class CudaOps:
    """The operations on one device; ``runtime`` is the driver's, or the emulation in tests."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
        """out [T, H] = x / sqrt(mean(x^2) + eps) * weight [H]; out may be x.

        [T, heads, d] with weight [d] works too, as a norm of each head; the heads of a token lie side by side.
        """
        self._norm("rms_norm", _NormInputs(x, None, weight, None, out), eps)

    def add_rms_norm(
        self, delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
    ) -> None:
        """residual [T, H] += delta [T, H], then out = rms_norm(residual); out may be delta."""
        self._norm("rms_norm", _NormInputs(residual, delta, weight, None, out), eps)

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, out: torch.Tensor
    ) -> None:
        """out [T, H] = (x - mean(x)) / sqrt(var(x) + eps) * weight [H] + bias [H]; out may be x."""
        self._norm("layer_norm", _NormInputs(x, None, weight, bias, out), eps)

    def add_layer_norm(
        self,
        delta: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
        out: torch.Tensor,
    ) -> None:
        """residual [T, H] += delta [T, H], then out = layer_norm(residual); out may be delta."""
        self._norm("layer_norm", _NormInputs(residual, delta, weight, bias, out), eps)

    def rope_inplace(self, x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> None:
        """Rotate x [T, heads, d] by ``positions`` [T] int64; ``cos_sin`` [L, r] float32: r/2 cosines, r/2 sines."""
        tokens, heads, head_size = x.shape
        _check("x", x, (tokens, heads, head_size), x.dtype)
        if heads > 1 and x.stride(1) != head_size:
            raise ValueError(f"x has strides {x.stride()}; the heads of a token must lie side by side")
        rotary = check_rotary(positions, cos_sin, tokens, head_size)
        if not _rows_are_aligned(x):
            raise ValueError(f"x's rows do not start at multiples of {VECTOR_BYTES} bytes (strides {x.stride()})")
        chosen = write_variant(x.dtype, x.dtype, head_size, 1, rotary, "rotate_heads")
        params = WriteParams(
            query=x.data_ptr(),
            positions=positions.data_ptr(),
            cos_sin=cos_sin.data_ptr(),
            query_stride=x.stride(0),
            num_tokens=tokens,
            num_query_heads=heads,
        )
        self._runtime.kernel(chosen)((tokens, 1), _ROTATE_THREADS, 0, params)

    def silu_and_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        """out [T, F] = silu(gate) * up, for gate_up [T, 2F] = gate beside up; out may be ``gate_up[:, :F]``."""
        rows, width = out.shape
        _check("gate_up", gate_up, (rows, 2 * width), gate_up.dtype)
        _check("out", out, (rows, width), gate_up.dtype)
        self._activation("silu_and_mul", gate_up, out)

    def gelu_new_inplace(self, x: torch.Tensor) -> None:
        """x [T, F] = gelu(x) by the tanh formula (GPT-2's)."""
        _check("x", x, tuple(x.shape), x.dtype)
        self._activation("gelu_tanh", x, x)

    def gelu_inplace(self, x: torch.Tensor) -> None:
        """x [T, F] = gelu(x) by the error function."""
        _check("x", x, tuple(x.shape), x.dtype)
        self._activation("gelu_erf", x, x)

    def argmax_rows(self, logits: torch.Tensor, out: torch.Tensor) -> None:
        """out [S] int64 = index of the largest in each row of logits [S, V], the lowest on ties; a NaN is largest."""
        rows, width = logits.shape
        _check("logits", logits, (rows, width), logits.dtype)
        _check("out", out, (rows,), torch.int64)
        if width == 0:
            raise ValueError("argmax of rows without columns")
        vectors = int(_rows_are_aligned(logits))
        chosen = variant("argmax.cu", "argmax_rows", scalar=logits.dtype, vectors=vectors)
        params = ArgmaxParams(logits.data_ptr(), out.data_ptr(), logits.stride(0), width)
        self._runtime.kernel(chosen)((rows, 1), _ARGMAX_THREADS, 0, params)

    def copy_blocks(self, src_kv: torch.Tensor, dst_kv: torch.Tensor, pairs: torch.Tensor) -> None:
        """dst_kv[pairs[i, 1]] = src_kv[pairs[i, 0]] for every i in pairs [n, 2] int64: whole blocks, all layers.

        Either tensor may lie in pinned host memory; both may be the same. No destination may also be a source or
        appear twice. ``pairs`` on the host is copied to the device first, without waiting when it is pinned.
        """
        if src_kv.shape[1:] != dst_kv.shape[1:] or src_kv.dtype is not dst_kv.dtype:
            raise ValueError(f"blocks of {src_kv.dtype} {tuple(src_kv.shape)} do not fit {tuple(dst_kv.shape)}")
        if not (src_kv.is_contiguous() and dst_kv.is_contiguous() and pairs.is_contiguous()):
            raise ValueError("copy_blocks works on contiguous tensors")
        _check("pairs", pairs, (pairs.shape[0], 2), torch.int64)
        for name, tensor in (("src_kv", src_kv), ("dst_kv", dst_kv)):
            self._check_reachable(name, tensor)
        block_bytes = src_kv.stride(0) * src_kv.element_size()
        if block_bytes % VECTOR_BYTES:
            raise ValueError(f"a block of {block_bytes} bytes is no multiple of {VECTOR_BYTES}")
        on_device = pairs.to(self._runtime.device, non_blocking=True)
        vectors = block_bytes // VECTOR_BYTES
        blocks_per_pair = max(1, min(64, -(-vectors // (_COPY_THREADS * _COPY_IN_FLIGHT))))
        params = CopyParams(src_kv.data_ptr(), dst_kv.data_ptr(), on_device.data_ptr(), vectors)
        grid = (pairs.shape[0], blocks_per_pair)
        self._runtime.kernel(variant("copy_blocks.cu", "copy_blocks"))(grid, _COPY_THREADS, 0, params)

    def _check_reachable(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.device.type != self._runtime.device.type and not tensor.is_pinned():
            raise ValueError(f"{name} lies in host memory that is not pinned")

    def _norm(self, kernel: str, inputs: _NormInputs, eps: float) -> None:
        x, delta, bias = inputs.x, inputs.delta, inputs.bias
        _check_norm(inputs)
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
            "norm.cu",
            kernel,
            scalar=x.dtype,
            width=width,
            threads=threads,
            delta=int(delta is not None),
            vectors=int(vectors),
        )
        heads = x.shape[1] if x.dim() == 3 else 1
        self._runtime.kernel(chosen)((x.shape[0], heads), threads, 0, params)

    def _activation(self, kernel: str, x: torch.Tensor, out: torch.Tensor) -> None:
        rows, width = out.shape
        vectors = _rows_are_aligned(x) and _rows_are_aligned(out) and width * out.element_size() % VECTOR_BYTES == 0
        elements = VECTOR_BYTES // out.element_size() if vectors else 1
        launch = self._activation_kernel(kernel, x.dtype, vectors)
        params = ActivationParams(x.data_ptr(), out.data_ptr(), x.stride(0), out.stride(0), width)
        launch((rows, -(-width // (_ACTIVATION_THREADS * elements))), _ACTIVATION_THREADS, 0, params)

    def _activation_kernel(self, kernel: str, dtype: torch.dtype, vectors: bool) -> Kernel:
        return self._runtime.kernel(variant("activation.cu", kernel, scalar=dtype, vectors=int(vectors)))


def _check_norm(inputs: _NormInputs) -> None:
    shape, dtype = tuple(inputs.x.shape), inputs.x.dtype
    if len(shape) not in (2, 3):
        raise ValueError(f"a norm works on [rows, width] or [rows, heads, width], got {shape}")
    for tensor in (inputs.x, inputs.delta, inputs.out):
        if tensor is None:
            continue
        _check("a row tensor of a norm", tensor, shape, dtype)
        if len(shape) == 3 and shape[1] > 1 and tensor.stride(1) != shape[2]:
            raise ValueError(f"a norm of heads wants them side by side, got strides {tensor.stride()}")
    for tensor in (inputs.weight, inputs.bias):
        if tensor is not None:
            _check("a norm's weight or bias", tensor, shape[-1:], dtype)


def _norm_takes_vectors(inputs: _NormInputs) -> bool:
    """Whether every row of every tensor starts at a multiple of 16 bytes and has whole vectors."""
    rows_of = [tensor for tensor in (inputs.x, inputs.delta, inputs.out) if tensor is not None]
    vectors_of = [tensor for tensor in (inputs.weight, inputs.bias) if tensor is not None]
    whole = inputs.x.shape[-1] * inputs.x.element_size() % VECTOR_BYTES == 0
    aligned = all(tensor.data_ptr() % VECTOR_BYTES == 0 for tensor in vectors_of)
    return whole and aligned and all(_rows_are_aligned(tensor) for tensor in rows_of)


def norm_threads(width: int, element_bytes: int) -> int:
    """Threads of a norm's block: one vector of 16 bytes each, in whole warps, up to 512."""
    per_row = -(-width * element_bytes // VECTOR_BYTES)
    return min(_MAX_NORM_THREADS, -(-per_row // 32) * 32)


def _rows_are_aligned(tensor: torch.Tensor) -> bool:
    row_bytes = tensor.stride(0) * tensor.element_size()
    return tensor.data_ptr() % VECTOR_BYTES == 0 and (tensor.shape[0] == 1 or row_bytes % VECTOR_BYTES == 0)


def _check(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tensor.dtype is not dtype or tensor.shape != shape or (tensor.stride(-1) != 1 and shape[-1] > 1):
        raise ValueError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}, "
            f"wanted {dtype} {shape} with a contiguous last dimension"
        )
