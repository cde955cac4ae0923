"""The operations of ``StateOps`` by the compiled CPU kernels: activations and states of float32 and bfloat16."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from kvplan_engine.kernels.arguments import check_rows
from kvplan_engine.kernels.cpu.library import STATUS_OK, STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.structures import (
    ConvolutionArgs,
    DeltaRuleArgs,
    GatedRowsArgs,
    Mamba1Args,
    Mamba2Args,
    StateArgs,
)
from kvplan_engine.kernels.states.operations import (
    Convolution,
    DeltaRule,
    DeltaTokens,
    Gating,
    Mamba1,
    Mamba2,
    ScanInputs,
    TorchStates,
    check_delta,
    check_scan,
)
from kvplan_engine.kernels.states.rows import StateRows, StateStep

MOST_TAPS = 8
"""KVPLAN_MOST_TAPS."""
MOST_KEY_SIZE = 256
"""KVPLAN_MOST_KEY_SIZE."""


class CpuStates:
    """csrc/cpu/states/; the definition for what they do not take."""

    def __init__(self, kernels: CpuKernels) -> None:
        self._kernels, self._definition = kernels, TorchStates()

    def convolve(self, x: Tensor, out: Tensor, convolution: Convolution, rows: StateRows, step: StateStep) -> None:
        """See StateOps.convolve."""
        if not (_are_stored(x.dtype, rows.dtype) and 2 <= convolution.num_taps <= MOST_TAPS):
            self._definition.convolve(x, out, convolution, rows, step)
            return
        shape = (step.num_tokens, convolution.num_channels)
        check_rows("x", x, shape, x.dtype)
        check_rows("out", out, shape, x.dtype)
        args = ConvolutionArgs(
            _state_args(rows, step),
            *(x.data_ptr(), out.data_ptr(), x.stride(0), out.stride(0)),
            *(convolution.weight.data_ptr(), _address(convolution.bias)),
            *(convolution.num_channels, convolution.num_taps, convolution.silu, STORAGE_CODES[x.dtype]),
        )
        _raise_for(self._kernels.convolve(byref(args), torch.get_num_threads()), step)

    def scan_mamba1(self, inputs: ScanInputs, out: Tensor, mamba: Mamba1, rows: StateRows, step: StateStep) -> None:
        """See StateOps.scan_mamba1."""
        if not _are_stored(rows.dtype, out.dtype):
            self._definition.scan_mamba1(inputs, out, mamba, rows, step)
            return
        channels, columns = mamba.decay.shape
        check_scan(inputs, out, mamba, out.shape[0], (channels, channels, columns))
        args = Mamba1Args(
            _state_args(rows, step),
            *_scan_addresses(inputs, out, mamba),
            STORAGE_CODES[out.dtype],
        )
        _raise_for(self._kernels.scan_mamba1(byref(args), torch.get_num_threads()), step)

    def scan_mamba2(self, inputs: ScanInputs, out: Tensor, mamba: Mamba2, rows: StateRows, step: StateStep) -> None:
        """See StateOps.scan_mamba2."""
        if not _are_stored(rows.dtype, out.dtype):
            self._definition.scan_mamba2(inputs, out, mamba, rows, step)
            return
        heads = mamba.num_heads
        widths = (heads * mamba.num_rows, heads, mamba.num_groups * rows.row_elements)
        check_scan(inputs, out, mamba, out.shape[0], widths)
        args = Mamba2Args(
            _state_args(rows, step),
            *_scan_addresses(inputs, out, mamba),
            *(mamba.least_step, mamba.most_step),
            *(heads, mamba.num_rows, mamba.num_groups, STORAGE_CODES[out.dtype]),
        )
        _raise_for(self._kernels.scan_mamba2(byref(args), torch.get_num_threads()), step)

    def gate_rows(self, x: Tensor, gate: Tensor, gating: Gating) -> None:
        """See StateOps.gate_rows."""
        if not _are_stored(x.dtype):
            self._definition.gate_rows(x, gate, gating)
            return
        (rows, width), weight = x.shape, gating.weight
        check_rows("x", x, (rows, width), x.dtype)
        check_rows("gate", gate, (rows, width), x.dtype)
        if weight is not None:
            size = weight.shape[0]
            check_rows("weight", weight, (size if size == width // gating.num_groups else width,), x.dtype)
        args = GatedRowsArgs(
            *(x.data_ptr(), gate.data_ptr(), x.stride(0), gate.stride(0), rows, width, gating.num_groups),
            *(_address(weight), gating.eps),
            *(weight is not None and weight.shape[0] < width, gating.norm_first),
            *(gating.activation == "sigmoid", STORAGE_CODES[x.dtype]),
        )
        if self._kernels.gate_rows(byref(args), torch.get_num_threads()) != STATUS_OK:
            raise ValueError(f"{width} columns are no {gating.num_groups} equal groups")

    def delta_rule(self, rule: DeltaRule, tokens: DeltaTokens, rows: StateRows, step: StateStep) -> None:
        """See StateOps.delta_rule."""
        if not (_are_stored(tokens.value.dtype, rows.dtype) and rule.key_size <= MOST_KEY_SIZE):
            self._definition.delta_rule(rule, tokens, rows, step)
            return
        check_delta(rule, tokens, step.num_tokens)
        of_tokens = (tokens.query, tokens.key, tokens.value, tokens.out, tokens.decay, tokens.strength)
        args = DeltaRuleArgs(
            _state_args(rows, step),
            *map(_address, of_tokens),
            *(0 if each is None else each.stride(0) for each in of_tokens),
            *(rule.rate.data_ptr(), _address(rule.decay_bias)),
            *(rule.num_heads, rule.key_heads, rule.key_size, rule.value_size),
            *(rule.scale, rule.strength_scale, rule.has_element_decays, STORAGE_CODES[tokens.value.dtype]),
        )
        _raise_for(self._kernels.run_delta_rule(byref(args), torch.get_num_threads()), step)


def _are_stored(*dtypes: torch.dtype) -> bool:
    return all(dtype in STORAGE_CODES for dtype in dtypes)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _scan_addresses(inputs: ScanInputs, out: Tensor, mamba: Mamba1 | Mamba2) -> tuple[int, ...]:
    """Addresses, then strides, of a recurrence's tensors, then addresses of its weights."""
    rows = (inputs.x, inputs.steps, inputs.b, inputs.c, out)
    weights = (mamba.decay, mamba.skip, mamba.step_bias)
    return (*(each.data_ptr() for each in rows), *(each.stride(0) for each in rows), *(w.data_ptr() for w in weights))


def _state_args(rows: StateRows, step: StateStep) -> StateArgs:
    """Where the kernels find a state, and the tokens that it goes through."""
    tables = step.tables
    return StateArgs(
        *(rows.blocks.data_ptr(), rows.blocks.shape[1], rows.blocks.shape[0]),
        *(tables.data_ptr(), tables.stride(0), tables.shape[1]),
        *(step.query_starts.data_ptr(), step.positions.data_ptr(), step.num_seqs, step.num_tokens),
        *(rows.slot, rows.offset, rows.num_rows, rows.row_elements, STORAGE_CODES[rows.dtype]),
    )


def _raise_for(status: int, step: StateStep) -> None:
    """IndexError for a status that says so."""
    if status != STATUS_OK:
        raise IndexError(
            f"a state lies outside of its pool: tables {tuple(step.tables.shape)}, {step.num_tokens} tokens "
            f"from {step.query_starts.tolist()} on"
        )
