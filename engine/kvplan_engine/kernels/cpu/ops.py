"""The engine's CPU operations outside attention and matrix products; each writes into a tensor that the caller owns.

Float32 and bfloat16 storage, float32 maths. Inputs and outputs may be row-strided views; the last dimension is
contiguous. The meaning of each function is its slow twin in ``torch_ops``, which also serves where the kernels do not:
no compiler, another device, another dtype. Arguments of the wrong shape, dtype or stride raise ValueError, positions
and blocks outside their tensors IndexError.
"""

from __future__ import annotations

from ctypes import byref

import torch

from kvplan_engine.kernels import torch_ops
from kvplan_engine.kernels.cpu.library import STATUS_OK, STORAGE_CODES, CpuKernels, NormArgs, cpu_kernels


def _kernels_for(tensor: torch.Tensor) -> CpuKernels | None:
    if tensor.is_cpu and tensor.dtype in STORAGE_CODES:
        return cpu_kernels()
    return None


def _complain(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    raise ValueError(
        f"{name} is {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}, "
        f"wanted {dtype} {shape} with a contiguous last dimension"
    )


def _check(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tensor.dtype is not dtype or tensor.shape != shape or (tensor.stride(-1) != 1 and shape[-1] > 1):
        _complain(name, tensor, shape, dtype)


def _norm_args(
    delta: torch.Tensor | None,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    out: torch.Tensor,
) -> NormArgs:
    shape, dtype = tuple(x.shape), x.dtype
    if len(shape) != 2:
        raise ValueError(f"a norm works on [rows, width], got {shape}")
    _check("x", x, shape, dtype)
    _check("out", out, shape, dtype)
    _check("weight", weight, shape[1:], dtype)
    if delta is not None:
        _check("delta", delta, shape, dtype)
    if bias is not None:
        _check("bias", bias, shape[1:], dtype)
    return NormArgs(
        None if delta is None else delta.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        *shape,
        0 if delta is None else delta.stride(0),
        x.stride(0),
        out.stride(0),
        eps,
        STORAGE_CODES[dtype],
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """out [T, H] = x / sqrt(mean(x^2) + eps) * weight [H]; out may be x. Or [T, heads, d] by weight [d], in torch."""
    kernels = _kernels_for(x)
    if kernels is None or x.dim() != 2:  # the kernel knows rows, not the heads inside them
        torch_ops.rms_norm(x, weight, eps, out)
    else:
        kernels.rms_norm(byref(_norm_args(None, x, weight, None, eps, out)), torch.get_num_threads())


def add_rms_norm(
    delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """residual [T, H] += delta [T, H], then out = rms_norm(residual); out may be delta."""
    kernels = _kernels_for(residual)
    if kernels is None:
        torch_ops.add_rms_norm(delta, residual, weight, eps, out)
    else:
        kernels.rms_norm(byref(_norm_args(delta, residual, weight, None, eps, out)), torch.get_num_threads())


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """out [T, H] = (x - mean(x)) / sqrt(var(x) + eps) * weight [H] + bias [H]; out may be x."""
    kernels = _kernels_for(x)
    if kernels is None:
        torch_ops.layer_norm(x, weight, bias, eps, out)
    else:
        kernels.layer_norm(byref(_norm_args(None, x, weight, bias, eps, out)), torch.get_num_threads())


def add_layer_norm(
    delta: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    out: torch.Tensor,
) -> None:
    """residual [T, H] += delta [T, H], then out = layer_norm(residual); out may be delta."""
    kernels = _kernels_for(residual)
    if kernels is None:
        torch_ops.add_layer_norm(delta, residual, weight, bias, eps, out)
    else:
        kernels.layer_norm(byref(_norm_args(delta, residual, weight, bias, eps, out)), torch.get_num_threads())


def rope_inplace(x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> None:
    """Rotate x [T, heads, d] by ``positions`` [T] int64; ``cos_sin`` [L, r] float32 holds r / 2 cosines, r / 2 sines.

    r may be less than d: the rest of each head stays. Queries and keys that lie side by side rotate in one call.
    """
    kernels = _kernels_for(x)
    if kernels is None:
        torch_ops.rope_inplace(x, positions, cos_sin)
        return
    if x.dim() != 3 or cos_sin.dim() != 2:
        raise ValueError(f"rope works on x [T, heads, d] and cos_sin [L, r], got {x.shape} and {cos_sin.shape}")
    tokens, heads, head_size = x.shape
    table_rows, rotary = cos_sin.shape
    _check("x", x, (tokens, heads, head_size), x.dtype)
    _check("positions", positions, (tokens,), torch.int64)
    if cos_sin.dtype is not torch.float32 or not cos_sin.is_contiguous() or rotary % 2 or rotary > head_size:
        _complain("cos_sin", cos_sin, (table_rows, head_size), torch.float32)
    status = kernels.rope(
        x.data_ptr(),
        x.stride(0),
        x.stride(1),
        positions.data_ptr(),
        cos_sin.data_ptr(),
        *(table_rows, tokens, heads, rotary),
        STORAGE_CODES[x.dtype],
        torch.get_num_threads(),
    )
    if status != STATUS_OK:
        raise IndexError(f"a position lies outside the rotary table of {table_rows} rows")


def silu_and_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """out [T, F] = silu(gate) * up, for gate_up [T, 2F] = gate beside up; out may be ``gate_up[:, :F]``."""
    kernels = _kernels_for(gate_up)
    if kernels is None:
        torch_ops.silu_and_mul(gate_up, out)
        return
    rows, width = out.shape
    _check("gate_up", gate_up, (rows, 2 * width), gate_up.dtype)
    _check("out", out, (rows, width), gate_up.dtype)
    kernels.silu_and_mul(
        *(gate_up.data_ptr(), gate_up.stride(0), out.data_ptr(), out.stride(0)),
        *(rows, width, STORAGE_CODES[out.dtype], torch.get_num_threads()),
    )


def gelu_new_inplace(x: torch.Tensor) -> None:
    """x [T, F] = gelu(x) by the tanh formula (GPT-2's)."""
    kernels = _kernels_for(x)
    if kernels is None:
        torch_ops.gelu_new_inplace(x)
        return
    rows, width = x.shape
    _check("x", x, (rows, width), x.dtype)
    kernels.gelu_tanh(x.data_ptr(), x.stride(0), rows, width, STORAGE_CODES[x.dtype], torch.get_num_threads())


def gelu_inplace(x: torch.Tensor) -> None:
    """x [T, F] = gelu(x) by the error function."""
    kernels = _kernels_for(x)
    if kernels is None:
        torch_ops.gelu_inplace(x)
        return
    rows, width = x.shape
    _check("x", x, (rows, width), x.dtype)
    kernels.gelu_erf(x.data_ptr(), x.stride(0), rows, width, STORAGE_CODES[x.dtype], torch.get_num_threads())


def argmax_rows(logits: torch.Tensor, out: torch.Tensor) -> None:
    """out [S] int64 = index of the largest in each row of logits [S, V], the lowest on ties; a NaN is largest."""
    kernels = _kernels_for(logits)
    if kernels is None:
        torch_ops.argmax_rows(logits, out)
        return
    rows, width = logits.shape
    _check("logits", logits, (rows, width), logits.dtype)
    _check("out", out, (rows,), torch.int64)
    if width == 0:
        raise ValueError("argmax of rows without columns")
    kernels.argmax_rows(
        *(logits.data_ptr(), logits.stride(0), out.data_ptr()),
        *(rows, width, STORAGE_CODES[logits.dtype], torch.get_num_threads()),
    )


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """out [T, N] = x [T, K] @ weight [N, K] transposed, + bias [N]: for few rows, where reading the weights decides."""
    kernels = _kernels_for(x)
    if kernels is None:
        torch_ops.linear(x, weight, bias, out)
        return
    (rows, inputs), outputs = x.shape, weight.shape[0]
    _check("x", x, (rows, inputs), weight.dtype)
    _check("weight", weight, (outputs, inputs), weight.dtype)
    _check("out", out, (rows, outputs), weight.dtype)
    if not weight.is_contiguous():
        raise ValueError("linear works on a contiguous weight")
    if bias is not None:
        _check("bias", bias, (outputs,), weight.dtype)
    kernels.linear(
        *(x.data_ptr(), x.stride(0), weight.data_ptr(), None if bias is None else bias.data_ptr()),
        *(out.data_ptr(), out.stride(0), rows, inputs, outputs),
        *(STORAGE_CODES[x.dtype], torch.get_num_threads()),
    )


def copy_blocks(src_kv: torch.Tensor, dst_kv: torch.Tensor, pairs: torch.Tensor) -> None:
    """dst_kv[pairs[i, 1]] = src_kv[pairs[i, 0]] for every i in pairs [n, 2] int64: whole blocks, all layers.

    Both may be the same tensor; no destination may also be a source or appear twice.
    """
    kernels = cpu_kernels() if src_kv.is_cpu and dst_kv.is_cpu else None
    if kernels is None:
        torch_ops.copy_blocks(src_kv, dst_kv, pairs)
        return
    if src_kv.shape[1:] != dst_kv.shape[1:] or src_kv.dtype is not dst_kv.dtype:
        _complain("dst_kv", dst_kv, (dst_kv.shape[0], *src_kv.shape[1:]), src_kv.dtype)
    if not (src_kv.is_contiguous() and dst_kv.is_contiguous() and pairs.is_contiguous()):
        raise ValueError("copy_blocks works on contiguous tensors")
    _check("pairs", pairs, (pairs.shape[0], 2), torch.int64)
    status = kernels.copy_blocks(
        *(src_kv.data_ptr(), src_kv.shape[0], dst_kv.data_ptr(), dst_kv.shape[0]),
        *(pairs.data_ptr(), pairs.shape[0], src_kv[0].nbytes, torch.get_num_threads()),
    )
    if status != STATUS_OK:
        raise IndexError(f"a block in {pairs.tolist()} lies outside its pool")
