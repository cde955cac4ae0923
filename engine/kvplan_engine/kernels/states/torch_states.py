"""The operations of ``StateOps`` in plain torch: their definitions, on any device."""

from __future__ import annotations

from torch import Tensor

from kvplan_engine.kernels.states import convolution as convolutions
from kvplan_engine.kernels.states import gating as gatings
from kvplan_engine.kernels.states import mamba as mambas
from kvplan_engine.kernels.states.convolution import Convolution
from kvplan_engine.kernels.states.delta import DeltaRule, DeltaTokens, run_delta_rule
from kvplan_engine.kernels.states.gating import Gating
from kvplan_engine.kernels.states.mamba import Mamba1, Mamba2, ScanInputs
from kvplan_engine.kernels.states.rows import StateRows, StateStep


class TorchStates:
    """Sequence after sequence, and token after token where an operation asks for it."""

    def convolve(self, x: Tensor, out: Tensor, convolution: Convolution, rows: StateRows, step: StateStep) -> None:
        """See StateOps.convolve."""
        convolutions.convolve(x, out, convolution, rows, step)

    def scan_mamba1(self, inputs: ScanInputs, out: Tensor, mamba: Mamba1, rows: StateRows, step: StateStep) -> None:
        """See StateOps.scan_mamba1."""
        mambas.scan_mamba1(inputs, out, mamba, rows, step)

    def scan_mamba2(self, inputs: ScanInputs, out: Tensor, mamba: Mamba2, rows: StateRows, step: StateStep) -> None:
        """See StateOps.scan_mamba2."""
        mambas.scan_mamba2(inputs, out, mamba, rows, step)

    def gate_rows(self, x: Tensor, gate: Tensor, gating: Gating) -> None:
        """See StateOps.gate_rows."""
        gatings.gate_rows(x, gate, gating)

    def delta_rule(self, rule: DeltaRule, tokens: DeltaTokens, rows: StateRows, step: StateStep) -> None:
        """See StateOps.delta_rule."""
        run_delta_rule(rule, tokens, rows, step)
