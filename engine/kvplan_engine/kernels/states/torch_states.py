"""The operations of ``StateOps`` in plain torch: their definitions, on any device."""

from __future__ import annotations

from torch import Tensor

from kvplan_engine.kernels.states import convolution as convolutions
from kvplan_engine.kernels.states.convolution import Convolution
from kvplan_engine.kernels.states.delta import DeltaRule, DeltaTokens, run_delta_rule
from kvplan_engine.kernels.states.rows import StateRows, StateStep


class TorchStates:
    """Sequence after sequence, and token after token where an operation asks for it."""

    def convolve(self, x: Tensor, out: Tensor, convolution: Convolution, rows: StateRows, step: StateStep) -> None:
        """See StateOps.convolve."""
        convolutions.convolve(x, out, convolution, rows, step)

    def delta_rule(self, rule: DeltaRule, tokens: DeltaTokens, rows: StateRows, step: StateStep) -> None:
        """See StateOps.delta_rule."""
        run_delta_rule(rule, tokens, rows, step)
