"""Every operation of ``interface.Ops`` in plain torch: the definition that the kernels are tested against.

Also the fallback where nothing can be compiled. Computes in float32, or in float64 for float64 inputs, which is how
tests see float32's own error, and rounds once, when the result is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from kvplan_engine.kernels.arguments import InputRows, check_inputs


def _upcast(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """See Ops.rms_norm."""
    wide = _upcast(x)
    out.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * _upcast(weight))


def add_rms_norm(delta: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """See Ops.add_rms_norm."""
    residual.copy_(_upcast(residual) + _upcast(delta))
    rms_norm(residual, weight, eps, out)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:
    """See Ops.layer_norm."""
    out.copy_(functional.layer_norm(_upcast(x), (x.shape[-1],), _upcast(weight), _upcast(bias), eps))


def add_layer_norm(delta: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:
    """See Ops.add_layer_norm."""
    residual.copy_(_upcast(residual) + _upcast(delta))
    layer_norm(residual, weight, bias, eps, out)


def rope_inplace(x: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """See Ops.rope_inplace."""
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin[positions].unsqueeze(1).split(half, dim=-1)
    first, second = _upcast(x[..., :half]), _upcast(x[..., half : 2 * half])
    rotated_first, rotated_second = first * cos - second * sin, second * cos + first * sin
    x[..., :half].copy_(rotated_first)
    x[..., half : 2 * half].copy_(rotated_second)


def silu_and_mul(gate_up: Tensor, out: Tensor) -> None:
    """See Ops.silu_and_mul."""
    gate, up = gate_up.chunk(2, dim=-1)
    out.copy_(functional.silu(_upcast(gate)) * _upcast(up))


def gelu_new_inplace(x: Tensor) -> None:
    """See Ops.gelu_new_inplace."""
    x.copy_(functional.gelu(_upcast(x), approximate="tanh"))


def gelu_inplace(x: Tensor) -> None:
    """See Ops.gelu_inplace."""
    x.copy_(functional.gelu(_upcast(x)))


def argmax_rows(logits: Tensor, out: Tensor) -> None:
    """See Ops.argmax_rows."""
    torch.argmax(logits, dim=-1, out=out)


def copy_blocks(src_kv: Tensor, dst_kv: Tensor, pairs: Tensor) -> None:
    """See Ops.copy_blocks."""
    sources, destinations = pairs.unbind(dim=1)
    if src_kv.dtype is torch.float8_e4m3fn:  # torch cannot index it
        src_kv, dst_kv = src_kv.view(torch.uint8), dst_kv.view(torch.uint8)
    dst_kv[destinations.to(dst_kv.device)] = src_kv[sources.to(src_kv.device)].to(dst_kv.device)


def copy_inputs(inputs: Sequence[InputRows], chosen: Tensor | None) -> None:
    """See Ops.copy_inputs."""
    check_inputs(inputs, chosen)
    for each in inputs:
        source, target = each.cut()
        target.copy_(source, non_blocking=True)
    if chosen is not None:
        _, tokens = inputs[0].cut()
        tokens.copy_(torch.where(tokens < 0, chosen[(-1 - tokens).clamp_(min=0)], tokens))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out [T, N] = x [T, K] @ weight [N, K] transposed, + bias [N]. The definition of ``cpu.ops.linear``."""
    product = _upcast(x) @ _upcast(weight).t()
    out.copy_(product if bias is None else product + _upcast(bias))
