"""One layer's Mamba 2: a convolution, a recurrence of each head, a gate."""

from __future__ import annotations

import torch

from kvplan_engine.description.mixers import State
from kvplan_engine.kernels.states.convolution import make_convolution
from kvplan_engine.kernels.states.gating import Gating
from kvplan_engine.kernels.states.mamba import Mamba2, ScanInputs
from kvplan_engine.layers.projection import StoredWeight, make_projection
from kvplan_engine.models.mixers.mixer_part import MixerSource, OfLayer
from kvplan_engine.models.part_kernels import PartKernels
from kvplan_engine.models.step_space import StepSpace


class Mamba2Part(OfLayer):
    """Projections, convolution and recurrence of layer ``index``; everything between the products happens in place.

    projected [T, inner + channels + heads]: the gate, what is convolved (the heads' inputs, B, C), the heads' steps.
    """

    def __init__(self, state: State, source: MixerSource, kernels: PartKernels) -> None:
        weights, name = source.weights, source.name
        self.index, self._ops = source.index, kernels.states
        heads, rows, columns = state.recurrent_shape
        self._widths = [heads * rows, state.conv_channels, heads]
        self._channels = [heads * rows, state.num_groups * columns, state.num_groups * columns]
        self._in = make_projection(kernels.projections, StoredWeight(weights, f"{name}.in"))
        self._out = make_projection(kernels.projections, StoredWeight(weights, f"{name}.out"))
        self._convolution = make_convolution(weights[f"{name}.conv.weight"], weights.get(f"{name}.conv.bias"))
        self._mamba = Mamba2(
            -weights[f"{name}.A_log"].float().exp(),
            weights[f"{name}.D"].float(),
            weights[f"{name}.step_bias"].float(),
            rows,
            state.num_groups,
            *state.step_limits,
        )
        norm = weights[f"{name}.gated_norm.weight"] if state.norms else None
        self._gating = Gating(norm, source.norms.eps, state.num_groups, state.norm_first)

    def __call__(self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor) -> None:
        """See MixerPart.__call__."""
        states, kv = step.states, step.kv
        (projected,) = step.workspace.scratch((normed.shape[0], sum(self._widths)))
        self._in(normed, projected)
        gate, channels, steps = projected.split(self._widths, dim=1)
        self._ops.convolve(channels, channels, self._convolution, kv.state(self.index, "conv"), states)
        x, b, c = channels.split(self._channels, dim=1)
        inputs = ScanInputs(x, steps, b, c)
        self._ops.scan_mamba2(inputs, x, self._mamba, kv.state(self.index, "recurrent"), states)
        self._ops.gate_rows(x, gate, self._gating)
        self._out(x, delta)
