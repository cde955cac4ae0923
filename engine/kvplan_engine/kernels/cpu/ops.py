"""The operations of ``interface.Ops`` by the compiled CPU kernels: float32 and bfloat16 storage.

Tensors of another dtype or device, and a machine without a compiler, get the definition in ``torch_ops``.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref

import torch
from torch import Tensor

from kvplan_engine.kernels import torch_ops
from kvplan_engine.kernels.arguments import (
    InputRows,
    check_argmax,
    check_block_copy,
    check_gated,
    check_norm,
    check_rotation,
    check_rows,
)
from kvplan_engine.kernels.cpu.library import STATUS_OK, STORAGE_CODES, CpuKernels, cpu_kernels
from kvplan_engine.kernels.cpu.structures import NormArgs


def _kernels_for(tensor: Tensor) -> CpuKernels | None:
    if tensor.is_cpu and tensor.dtype in STORAGE_CODES:
        return cpu_kernels()
    return None


def _norm_args(
    x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor
) -> NormArgs:
    check_norm(x, delta, weight, bias, out)
    num_heads = x.shape[1] if x.dim() == 3 else 1
    return NormArgs(
        None if delta is None else delta.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        x.shape[0] * num_heads,
        x.shape[-1],
        0 if delta is None else delta.stride(0),
        x.stride(0),
        out.stride(0),
        eps,
        STORAGE_CODES[x.dtype],
        num_heads,
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """See Ops.rms_norm."""
    kernels = _kernels_for(x)
    if kernels is None:
        torch_ops.rms_norm(x, weight, eps, out)
    else:
        kernels.rms_norm(byref(_norm_args(x, None, weight, None, eps, out)), torch.get_num_threads())


def add_rms_norm(delta: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """See Ops.add_rms_norm."""
    kernels = _kernels_for(residual)
    if kernels is None:
        torch_ops.add_rms_norm(delta, residual, weight, eps, out)
    else:
        kernels.rms_norm(byref(_norm_args(residual, delta, weight, None, eps, out)), torch.get_num_threads())


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:
    """See Ops.layer_norm."""
    kernels = _kernels_for(x)
    if kernels is None:
        torch_ops.layer_norm(x, weight, bias, eps, out)
    else:
        kernels.layer_norm(byref(_norm_args(x, None, weight, bias, eps, out)), torch.get_num_threads())


def add_layer_norm(delta: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:
    """See Ops.add_layer_norm."""
    kernels = _kernels_for(residual)
    if kernels is None:
        torch_ops.add_layer_norm(delta, residual, weight, bias, eps, out)
    else:
        kernels.layer_norm(byref(_norm_args(residual, delta, weight, bias, eps, out)), torch.get_num_threads())


def rope_inplace(x: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """See Ops.rope_inplace."""
    kernels = _kernels_for(x)
    if kernels is None:
        torch_ops.rope_inplace(x, positions, cos_sin)
        return
    check_rotation(x, positions, cos_sin)
    tokens, heads, _ = x.shape
    table_rows, rotary = cos_sin.shape
    status = kernels.rope(
        *(x.data_ptr(), x.stride(0), x.stride(1), positions.data_ptr(), cos_sin.data_ptr()),
        *(table_rows, tokens, heads, rotary, STORAGE_CODES[x.dtype], torch.get_num_threads()),
    )
    if status != STATUS_OK:
        raise IndexError(f"a position lies outside the rotary table of {table_rows} rows")


def silu_and_mul(gate_up: Tensor, out: Tensor) -> None:
    """See Ops.silu_and_mul."""
    kernels = _kernels_for(gate_up)
    if kernels is None:
        torch_ops.silu_and_mul(gate_up, out)
        return
    check_gated(gate_up, out)
    kernels.silu_and_mul(
        *(gate_up.data_ptr(), gate_up.stride(0), out.data_ptr(), out.stride(0)),
        *(*out.shape, STORAGE_CODES[out.dtype], torch.get_num_threads()),
    )


def gelu_new_inplace(x: Tensor) -> None:
    """See Ops.gelu_new_inplace."""
    kernels = _kernels_for(x)
    if kernels is None:
        torch_ops.gelu_new_inplace(x)
        return
    rows, width = x.shape
    check_rows("x", x, (rows, width), x.dtype)
    kernels.gelu_tanh(x.data_ptr(), x.stride(0), rows, width, STORAGE_CODES[x.dtype], torch.get_num_threads())


def gelu_inplace(x: Tensor) -> None:
    """See Ops.gelu_inplace."""
    kernels = _kernels_for(x)
    if kernels is None:
        torch_ops.gelu_inplace(x)
        return
    rows, width = x.shape
    check_rows("x", x, (rows, width), x.dtype)
    kernels.gelu_erf(x.data_ptr(), x.stride(0), rows, width, STORAGE_CODES[x.dtype], torch.get_num_threads())


def argmax_rows(logits: Tensor, out: Tensor) -> None:
    """See Ops.argmax_rows."""
    kernels = _kernels_for(logits)
    if kernels is None:
        torch_ops.argmax_rows(logits, out)
        return
    check_argmax(logits, out)
    kernels.argmax_rows(
        *(logits.data_ptr(), logits.stride(0), out.data_ptr()),
        *(*logits.shape, STORAGE_CODES[logits.dtype], torch.get_num_threads()),
    )


def copy_blocks(src_kv: Tensor, dst_kv: Tensor, pairs: Tensor) -> None:
    """See Ops.copy_blocks."""
    kernels = cpu_kernels() if src_kv.is_cpu and dst_kv.is_cpu else None
    if kernels is None:
        torch_ops.copy_blocks(src_kv, dst_kv, pairs)
        return
    check_block_copy(src_kv, dst_kv, pairs)
    status = kernels.copy_blocks(
        *(src_kv.data_ptr(), src_kv.shape[0], dst_kv.data_ptr(), dst_kv.shape[0]),
        *(pairs.data_ptr(), pairs.shape[0], src_kv[0].nbytes, torch.get_num_threads()),
    )
    if status != STATUS_OK:
        raise IndexError(f"a block in {pairs.tolist()} lies outside its pool")


def copy_inputs(inputs: Sequence[InputRows], chosen: Tensor | None) -> None:
    """See Ops.copy_inputs. For the sake of the protocol: a CPU's kernels read what the host wrote where it lies."""
    torch_ops.copy_inputs(inputs, chosen)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out [T, N] = x [T, K] @ weight [N, K] transposed, + bias [N]: for few rows, where reading the weights decides.

    Not one of ``Ops``: ``layers.linear.FewRowsLinear`` alone calls it.
    """
    kernels = _kernels_for(x)
    if kernels is None:
        torch_ops.linear(x, weight, bias, out)
        return
    (rows, inputs), outputs = x.shape, weight.shape[0]
    check_rows("x", x, (rows, inputs), weight.dtype)
    check_rows("weight", weight, (outputs, inputs), weight.dtype)
    check_rows("out", out, (rows, outputs), weight.dtype)
    if not weight.is_contiguous():
        raise ValueError("linear works on a contiguous weight")
    if bias is not None:
        check_rows("bias", bias, (outputs,), weight.dtype)
    kernels.linear(
        *(x.data_ptr(), x.stride(0), weight.data_ptr(), None if bias is None else bias.data_ptr()),
        *(out.data_ptr(), out.stride(0), rows, inputs, outputs),
        *(STORAGE_CODES[x.dtype], torch.get_num_threads()),
    )
