"""One layer's short convolution (LFM2): between two gates."""

from __future__ import annotations

import torch

from kvplan_engine.description.mixers import State
from kvplan_engine.kernels.states.convolution import make_convolution
from kvplan_engine.layers.projection import StoredWeight, make_projection
from kvplan_engine.models.mixers.mixer_part import MixerSource, OfLayer
from kvplan_engine.models.part_kernels import PartKernels
from kvplan_engine.models.step_space import StepSpace


class ShortConvPart(OfLayer):
    """Projections and convolution of layer ``index``. projected [T, 3 H]: gates before and behind, and the input."""

    def __init__(self, state: State, source: MixerSource, kernels: PartKernels) -> None:
        weights, name = source.weights, source.name
        self.index, self._ops = source.index, kernels.states
        self._in = make_projection(kernels.projections, StoredWeight(weights, f"{name}.in"))
        self._out = make_projection(kernels.projections, StoredWeight(weights, f"{name}.out"))
        conv, bias = weights[f"{name}.conv.weight"], weights.get(f"{name}.conv.bias")
        self._convolution = make_convolution(conv, bias, silu=False)

    def __call__(self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor) -> None:
        """See MixerPart.__call__."""
        (projected,) = step.workspace.scratch((normed.shape[0], 3 * self._convolution.num_channels))
        self._in(normed, projected)
        before, behind, x = projected.chunk(3, dim=1)
        x.mul_(before)
        self._ops.convolve(x, x, self._convolution, step.kv.state(self.index, "conv"), step.states)
        x.mul_(behind)
        self._out(x, delta)
