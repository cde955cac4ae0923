"""One layer's gated delta rule (Qwen3-Next, Qwen3.5, OLMo Hybrid) or Kimi Delta Attention."""

from __future__ import annotations

import torch

from kvplan_engine.description.mixers import State
from kvplan_engine.kernels.states.operations import DeltaRule, DeltaTokens, Gating, make_convolution
from kvplan_engine.models.mixers.mixer_part import MixerPart, MixerSource
from kvplan_engine.models.step_batch import StepSpace


class DeltaPart(MixerPart):
    """What both have in common: queries, keys and values go through a convolution, the delta rule, and a gated norm.

    All of it happens in place, in the columns that the first products wrote; a kind says how it comes by its decays,
    strengths and gates.
    """

    def __init__(self, state: State, source: MixerSource) -> None:
        weights, name = source.weights, source.name
        self.index, self._ops = source.index, source.kernels.states
        heads, value_size, key_size = state.recurrent_shape
        self._keys, self._values = state.key_heads * key_size, heads * value_size
        self._out = source.projection("out")
        self._convolution = make_convolution(weights[f"{name}.conv.weight"])
        self._rule = DeltaRule(
            *(heads, state.key_heads, key_size, value_size),
            rate=weights[f"{name}.A_log"].float().exp(),
            decay_bias=weights[f"{name}.step_bias"].float(),
            scale=key_size**-0.5,
            strength_scale=state.strength_scale,
        )
        eps = source.norms.eps if state.norm_eps is None else state.norm_eps
        weight, is_kimi = weights[f"{name}.gated_norm.weight"], state.kind == "kimi_delta"
        self._gating = Gating(weight, eps, heads, norm_first=True, activation="sigmoid" if is_kimi else "silu")

    def _run(
        self,
        qkv: torch.Tensor,
        decay: torch.Tensor,
        strength: torch.Tensor,
        gate: torch.Tensor,
        step: StepSpace,
        delta: torch.Tensor,
    ) -> None:
        """qkv [T, 2 keys + values] is overwritten."""
        states, kv = step.states, step.kv
        self._ops.convolve(qkv, qkv, self._convolution, kv.state(self.index, "conv"), states)
        query, key, value = qkv.split([self._keys, self._keys, self._values], dim=1)
        tokens = DeltaTokens(query, key, value, value, decay, strength)
        self._ops.delta_rule(self._rule, tokens, kv.state(self.index, "recurrent"), states)
        self._ops.gate_rows(value, gate, self._gating)
        self._out(value, delta)


class GatedDeltaPart(DeltaPart):
    """One product for queries, keys, values and gates, one for a decay and a strength of each head."""

    def __init__(self, state: State, source: MixerSource) -> None:
        super().__init__(state, source)
        self._in, self._rates = source.projection("in"), source.projection("decay_and_strength")

    def __call__(self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor) -> None:
        """See MixerPart.__call__."""
        tokens, heads = normed.shape[0], self._rule.num_heads
        width = 2 * self._keys + self._values
        projected, rates = step.workspace.scratch((tokens, width + self._values), (tokens, 2 * heads))
        self._in(normed, projected)
        self._rates(normed, rates)
        qkv, gate = projected.split([width, self._values], dim=1)
        self._run(qkv, rates[:, :heads], rates[:, heads:], gate, step, delta)


class KimiDeltaPart(DeltaPart):
    """A decay of each element of a key, and gates; both come through matrices of low rank."""

    def __init__(self, state: State, source: MixerSource) -> None:
        super().__init__(state, source)
        self._qkv, self._strength = source.projection("qkv"), source.projection("strength")
        self._rank = state.rank
        self._down_up = {
            name: (source.projection(f"{name}_down"), source.projection(f"{name}_up")) for name in ("decay", "gate")
        }

    def __call__(self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor) -> None:
        """See MixerPart.__call__."""
        widths = (2 * self._keys + self._values, self._keys, self._values, self._rule.num_heads, self._rank)
        qkv, decay, gate, strength, latent = step.workspace.scratch(*((normed.shape[0], width) for width in widths))
        self._qkv(normed, qkv)
        self._strength(normed, strength)
        for name, out in (("decay", decay), ("gate", gate)):
            down, up = self._down_up[name]
            down(normed, latent)
            up(latent, out)
        self._run(qkv, decay, strength, gate, step, delta)


# One layer's short convolution (LFM2): between two gates.


class ShortConvPart(MixerPart):
    """Projections and convolution of layer ``index``. projected [T, 3 H]: gates before and behind, and the input."""

    def __init__(self, state: State, source: MixerSource) -> None:
        weights, name = source.weights, source.name
        self.index, self._ops = source.index, source.kernels.states
        self._in, self._out = source.projection("in"), source.projection("out")
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
