"""The gate of attention's output before its projection: times sigmoid or softplus of the gate, per element or head."""

from __future__ import annotations

import torch
from torch.nn import functional

from kvplan_engine.description.mixers import Attention
from kvplan_engine.layers.projection import StoredWeight, make_projection
from kvplan_engine.models.mixers.mixer_part import MixerSource
from kvplan_engine.models.part_kernels import PartKernels
from kvplan_engine.models.step_space import StepSpace


class AttentionGate:
    """Projected from the layer's input; its memory is that of the queries, which attention has read by then."""

    def __init__(self, attention: Attention, source: MixerSource, kernels: PartKernels) -> None:
        self._num_columns = attention.num_heads if attention.gate == "head" else attention.output_size
        self._num_heads, self._activation = attention.num_heads, attention.gate_activation
        assert self._num_columns <= attention.qkv_size, "no room for a gate"
        self._project = make_projection(kernels.projections, StoredWeight(source.weights, f"{source.name}.gate"))

    def __call__(self, normed: torch.Tensor, attended: torch.Tensor, step: StepSpace) -> None:
        """attended [T, hq d] times the activated gate of normed [T, H], in place."""
        num_tokens = normed.shape[0]
        (gate,) = step.workspace.scratch((num_tokens, self._num_columns))
        self._project(normed, gate)
        if self._activation == "sigmoid":
            gate.sigmoid_()
        else:
            gate.copy_(functional.softplus(gate.float()))
        attended.view(num_tokens, self._num_heads, -1).mul_(gate.view(num_tokens, self._num_heads, -1))


def make_gate(attention: Attention, source: MixerSource, kernels: PartKernels) -> AttentionGate | None:
    """None where attention has no gate."""
    return None if attention.gate == "none" else AttentionGate(attention, source, kernels)
