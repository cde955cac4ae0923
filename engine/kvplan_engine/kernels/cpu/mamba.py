"""Calls of the compiled kernels of Mamba's layers: arguments checked, status returned."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from kvplan_engine.kernels.arguments import check_rows
from kvplan_engine.kernels.cpu.library import STATUS_OK, STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.mamba_args import GatedRowsArgs, Mamba1Args, Mamba2Args
from kvplan_engine.kernels.cpu.state_args import StateArgs
from kvplan_engine.kernels.states.gating import Gating
from kvplan_engine.kernels.states.mamba import Mamba1, Mamba2, ScanInputs


def scan_mamba1(kernels: CpuKernels, inputs: ScanInputs, out: Tensor, mamba: Mamba1, state: StateArgs) -> int:
    """See StateOps.scan_mamba1."""
    channels, columns = mamba.decay.shape
    _check_scan(inputs, out, (channels, channels, columns))
    args = Mamba1Args(
        state, *_addresses(inputs, out), *_weights(mamba.decay, mamba.skip, mamba.step_bias), STORAGE_CODES[out.dtype]
    )
    return int(kernels.scan_mamba1(byref(args), torch.get_num_threads()))


def scan_mamba2(kernels: CpuKernels, inputs: ScanInputs, out: Tensor, mamba: Mamba2, state: StateArgs) -> int:
    """See StateOps.scan_mamba2."""
    heads = mamba.num_heads
    _check_scan(inputs, out, (heads * mamba.num_rows, heads, mamba.num_groups * state.columns))
    args = Mamba2Args(
        state,
        *_addresses(inputs, out),
        *_weights(mamba.decay, mamba.skip, mamba.step_bias),
        *(mamba.least_step, mamba.most_step),
        *(heads, mamba.num_rows, mamba.num_groups, STORAGE_CODES[out.dtype]),
    )
    return int(kernels.scan_mamba2(byref(args), torch.get_num_threads()))


def gate_rows(kernels: CpuKernels, x: Tensor, gate: Tensor, gating: Gating) -> None:
    """See StateOps.gate_rows."""
    rows, width = x.shape
    check_rows("x", x, (rows, width), x.dtype)
    check_rows("gate", gate, (rows, width), x.dtype)
    weight = gating.weight
    if weight is not None:
        size = weight.shape[0]
        check_rows("weight", weight, (size if size == width // gating.num_groups else width,), x.dtype)
    args = GatedRowsArgs(
        *(x.data_ptr(), gate.data_ptr(), x.stride(0), gate.stride(0), rows, width, gating.num_groups),
        *(None if weight is None else weight.data_ptr(), gating.eps),
        *(weight is not None and weight.shape[0] < width, gating.norm_first),
        *(gating.activation == "sigmoid", STORAGE_CODES[x.dtype]),
    )
    if kernels.gate_rows(byref(args), torch.get_num_threads()) != STATUS_OK:
        raise ValueError(f"{width} columns are no {gating.num_groups} equal groups")


def _check_scan(inputs: ScanInputs, out: Tensor, widths: tuple[int, int, int]) -> None:
    """widths: of x, of the steps, of B and C."""
    tokens, dtype = out.shape[0], out.dtype
    x, steps, shared = widths
    named = {"x": (inputs.x, x), "out": (out, x), "steps": (inputs.steps, steps)}
    for name, (tensor, width) in (named | {"b": (inputs.b, shared), "c": (inputs.c, shared)}).items():
        check_rows(name, tensor, (tokens, width), dtype)


def _addresses(inputs: ScanInputs, out: Tensor) -> tuple[int, ...]:
    rows = (inputs.x, inputs.steps, inputs.b, inputs.c, out)
    return (*(tensor.data_ptr() for tensor in rows), *(tensor.stride(0) for tensor in rows))


def _weights(*weights: Tensor) -> tuple[int, ...]:
    for weight in weights:
        if weight.dtype is not torch.float32 or not weight.is_contiguous():
            raise ValueError(f"a recurrence's weights are contiguous and float32, not {weight.dtype}")
    return tuple(weight.data_ptr() for weight in weights)
