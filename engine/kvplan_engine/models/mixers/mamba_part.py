"""One layer's Mamba: a convolution, a recurrence of each channel, a gate."""

from __future__ import annotations

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.mixers import State
from kvplan_engine.kernels.states.operations import Gating, Mamba1, Mamba2, ScanInputs, make_convolution
from kvplan_engine.models.mixers.mixer_part import MixerPart, MixerSource
from kvplan_engine.models.step_batch import StepSpace


class Mamba1Part(MixerPart):
    """Projections, convolution and recurrence of layer ``index``.

    projected [T, 2 C]: channels and gate. latents [T, rank + 2 N]: what the steps are made of, B and C. steps [T, C].
    """

    def __init__(self, state: State, source: MixerSource) -> None:
        weights, name = source.weights, source.name
        self.index, self._ops = source.index, source.kernels.states
        self._num_channels, columns = state.recurrent_shape
        self._widths = [state.rank, columns, columns]
        step_bias = weights.pop(f"{name}.step.bias")  # added in float32, after the product
        self._in, self._x, self._step, self._out = map(source.projection, ("in", "x", "step", "out"))
        self._convolution = make_convolution(weights[f"{name}.conv.weight"], weights.get(f"{name}.conv.bias"))
        decay = -weights[f"{name}.A_log"].float().exp()
        self._mamba = Mamba1(decay, weights[f"{name}.D"].float(), step_bias.float())
        self._norms = _LatentNorms(state, source) if state.norms or state.plain_norms else None

    def __call__(self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor) -> None:
        """See MixerPart.__call__."""
        states, kv = step.states, step.kv
        tokens, width = normed.shape[0], self._num_channels
        projected, latents, steps = step.workspace.scratch(
            (tokens, 2 * width), (tokens, sum(self._widths)), (tokens, width)
        )
        self._in(normed, projected)
        x, gate = projected.split(width, dim=1)
        self._ops.convolve(x, x, self._convolution, kv.state(self.index, "conv"), states)
        self._x(x, latents)
        low, b, c = latents.split(self._widths, dim=1)
        if self._norms is not None:
            self._norms(low, b, c)
        self._step(low, steps)
        inputs = ScanInputs(x, steps, b, c)
        self._ops.scan_mamba1(inputs, x, self._mamba, kv.state(self.index, "recurrent"), states)
        self._ops.gate_rows(x, gate, Gating())
        self._out(x, delta)


class _LatentNorms:
    """RMSNorm of what the steps are made of, of B and of C: Jamba's, or Falcon Mamba's, which have no weights."""

    def __init__(self, state: State, source: MixerSource) -> None:
        rank, columns = state.rank, state.recurrent_shape[-1]
        self._ops = source.kernels.ops
        self._eps = source.norms.eps if state.norm_eps is None else state.norm_eps
        self._weights = [
            _weight(source.weights, f"{source.name}.{part}_norm.weight", size)
            for part, size in (("step", rank), ("B", columns), ("C", columns))
        ]

    def __call__(self, *latents: torch.Tensor) -> None:
        for rows, weight in zip(latents, self._weights, strict=True):
            self._ops.rms_norm(rows, weight, self._eps, rows)


def _weight(weights: Weights, name: str, size: int) -> torch.Tensor:
    found = weights.get(name)
    return weights["embedding.weight"].new_ones(size) if found is None else found


# One layer's Mamba 2: a convolution, a recurrence of each head, a gate.


class Mamba2Part(MixerPart):
    """Projections, convolution and recurrence of layer ``index``; everything between the products happens in place.

    projected [T, inner + channels + heads]: the gate, what is convolved (the heads' inputs, B, C), the heads' steps.
    """

    def __init__(self, state: State, source: MixerSource) -> None:
        weights, name = source.weights, source.name
        self.index, self._ops = source.index, source.kernels.states
        heads, rows, columns = state.recurrent_shape
        self._widths = [heads * rows, state.conv_channels, heads]
        self._channels = [heads * rows, state.num_groups * columns, state.num_groups * columns]
        self._in, self._out = source.projection("in"), source.projection("out")
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
