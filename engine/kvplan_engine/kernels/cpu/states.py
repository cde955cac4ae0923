"""The operations of ``StateOps`` by the compiled CPU kernels: activations and states of float32 and bfloat16."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from kvplan_engine.kernels.arguments import check_rows
from kvplan_engine.kernels.cpu import mamba as mambas
from kvplan_engine.kernels.cpu.delta import MOST_KEY_SIZE, delta_args
from kvplan_engine.kernels.cpu.library import STATUS_OK, STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.state_args import MOST_TAPS, ConvolutionArgs, StateArgs
from kvplan_engine.kernels.states.convolution import Convolution
from kvplan_engine.kernels.states.delta import DeltaRule, DeltaTokens
from kvplan_engine.kernels.states.gating import Gating
from kvplan_engine.kernels.states.mamba import Mamba1, Mamba2, ScanInputs
from kvplan_engine.kernels.states.rows import StateRows, StateStep
from kvplan_engine.kernels.states.torch_states import TorchStates


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
        bias = convolution.bias
        args = ConvolutionArgs(
            state_args(rows, step),
            *(x.data_ptr(), out.data_ptr(), x.stride(0), out.stride(0)),
            *(convolution.weight.data_ptr(), None if bias is None else bias.data_ptr()),
            *(convolution.num_channels, convolution.num_taps, convolution.silu, STORAGE_CODES[x.dtype]),
        )
        raise_for(self._kernels.convolve(byref(args), torch.get_num_threads()), step)

    def scan_mamba1(self, inputs: ScanInputs, out: Tensor, mamba: Mamba1, rows: StateRows, step: StateStep) -> None:
        """See StateOps.scan_mamba1."""
        if rows.dtype not in STORAGE_CODES or out.dtype not in STORAGE_CODES:
            self._definition.scan_mamba1(inputs, out, mamba, rows, step)
        else:
            raise_for(mambas.scan_mamba1(self._kernels, inputs, out, mamba, state_args(rows, step)), step)

    def scan_mamba2(self, inputs: ScanInputs, out: Tensor, mamba: Mamba2, rows: StateRows, step: StateStep) -> None:
        """See StateOps.scan_mamba2."""
        if rows.dtype not in STORAGE_CODES or out.dtype not in STORAGE_CODES:
            self._definition.scan_mamba2(inputs, out, mamba, rows, step)
        else:
            raise_for(mambas.scan_mamba2(self._kernels, inputs, out, mamba, state_args(rows, step)), step)

    def gate_rows(self, x: Tensor, gate: Tensor, gating: Gating) -> None:
        """See StateOps.gate_rows."""
        if x.dtype not in STORAGE_CODES:
            self._definition.gate_rows(x, gate, gating)
        else:
            mambas.gate_rows(self._kernels, x, gate, gating)

    def delta_rule(self, rule: DeltaRule, tokens: DeltaTokens, rows: StateRows, step: StateStep) -> None:
        """See StateOps.delta_rule."""
        if not (_are_stored(tokens.value.dtype, rows.dtype) and rule.key_size <= MOST_KEY_SIZE):
            self._definition.delta_rule(rule, tokens, rows, step)
            return
        args = delta_args(rule, tokens, state_args(rows, step), STORAGE_CODES[tokens.value.dtype])
        raise_for(self._kernels.run_delta_rule(byref(args), torch.get_num_threads()), step)


def _are_stored(*dtypes: torch.dtype) -> bool:
    return all(dtype in STORAGE_CODES for dtype in dtypes)


def state_args(rows: StateRows, step: StateStep) -> StateArgs:
    """Where the kernels find a state, and the tokens that it goes through."""
    tables = step.tables
    return StateArgs(
        *(rows.blocks.data_ptr(), rows.blocks.shape[1], rows.blocks.shape[0]),
        *(tables.data_ptr(), tables.stride(0), tables.shape[1]),
        *(step.query_starts.data_ptr(), step.positions.data_ptr(), step.num_seqs, step.num_tokens),
        *(rows.slot, rows.offset, rows.num_rows, rows.row_elements, STORAGE_CODES[rows.dtype]),
    )


def raise_for(status: int, step: StateStep) -> None:
    """IndexError for a status that says so."""
    if status != STATUS_OK:
        raise IndexError(
            f"a state lies outside of its pool: tables {tuple(step.tables.shape)}, {step.num_tokens} tokens "
            f"from {step.query_starts.tolist()} on"
        )
