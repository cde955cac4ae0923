"""What the layers with a state need of a device's kernels."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from kvplan_engine.kernels.states.convolution import Convolution
from kvplan_engine.kernels.states.delta import DeltaRule, DeltaTokens
from kvplan_engine.kernels.states.gating import Gating
from kvplan_engine.kernels.states.mamba import Mamba1, Mamba2, ScanInputs
from kvplan_engine.kernels.states.rows import StateRows, StateStep


class StateOps(Protocol):
    """Operations over the tokens of each sequence, which go on from its state and leave the new one in its place.

    Activations of float32 or bfloat16 have rows of T tokens with a stride of their own; the kernels compute in float32.
    IndexError where a sequence's table names a block that the pool does not have.
    """

    def convolve(self, x: Tensor, out: Tensor, convolution: Convolution, rows: StateRows, step: StateStep) -> None:
        """out [T, C] = ``convolution`` of x [T, C] and the inputs before them: see ``Convolution``. out may be x."""
        ...

    def scan_mamba1(self, inputs: ScanInputs, out: Tensor, mamba: Mamba1, rows: StateRows, step: StateStep) -> None:
        """out [T, C] of the recurrence: see ``kernels/states/mamba``. out may be ``inputs.x``."""
        ...

    def scan_mamba2(self, inputs: ScanInputs, out: Tensor, mamba: Mamba2, rows: StateRows, step: StateStep) -> None:
        """out [T, heads x rows] of the recurrence: see ``kernels/states/mamba``. out may be ``inputs.x``."""
        ...

    def gate_rows(self, x: Tensor, gate: Tensor, gating: Gating) -> None:
        """x [T, C] times silu(gate [T, C]), in place, with the norm of ``gating``."""
        ...

    def delta_rule(self, rule: DeltaRule, tokens: DeltaTokens, rows: StateRows, step: StateStep) -> None:
        """``tokens.out`` [T, H * value_size] = what the gated delta rule makes of the step's tokens: see ``delta``."""
        ...
