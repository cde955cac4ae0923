"""The gated delta rule: what it is, and its definition in plain torch.

Each of H heads has a state S [value_size, key_size]. A token with query q, key k and value v changes it to

    S' = S * exp(g)         d = (v - S' k) * b         S = S' + d k^T         out = S q

and leaves ``out`` (Yang et al., Gated Delta Networks, 2024; with a g for each element of a key: Kimi Linear, 2025).
Here g = -rate * softplus(decay + decay_bias), b = strength_scale * sigmoid(strength), k = key / |key|, and q is
query / |query| times scale.

Linear attention with fixed decays (lightning attention, MiniMax-01, 2025) is the same without strengths: d = v and
g = -rate, with queries and keys as they are but for the scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from kvplan_engine.kernels.states.rows import StateRows, StateStep

_LEAST_SQUARE = 1e-6  # added to the sum of squares that a query or key is divided by the root of


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """The delta rule of one layer. Its state has H x value_size rows of key_size; head h has the query and key of h *
    key_heads / H.

    rate [H] float32. decay_bias float32: [H], or [H * key_size] where each element of a key decays by itself; None
    where decays are fixed.
    """

    num_heads: int
    key_heads: int
    key_size: int
    value_size: int
    rate: torch.Tensor
    decay_bias: torch.Tensor | None = None
    scale: float = 1.0
    strength_scale: float = 1.0

    @property
    def has_element_decays(self) -> bool:
        return self.decay_bias is not None and self.decay_bias.numel() != self.num_heads


@dataclass(frozen=True, slots=True)
class DeltaTokens:
    """What a step's tokens bring, rows of one dtype with strides of their own.

    query, key [T, key_heads * key_size]; value, out [T, H * value_size], which may be one. decay: as many columns as
    the rule's ``decay_bias``; None where decays are fixed. strength [T, H]; None for linear attention.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    out: torch.Tensor
    decay: torch.Tensor | None = None
    strength: torch.Tensor | None = None


def run_delta_rule(rule: DeltaRule, tokens: DeltaTokens, rows: StateRows, step: StateStep) -> None:
    """See StateOps.delta_rule. Token after token."""
    for sequence, begin, end in step.sequences():
        state = rows.load(step.tables[sequence]).to(torch.promote_types(rows.dtype, torch.float32))
        state = state.view(rule.num_heads, rule.value_size, rule.key_size)
        if step.is_new(begin):
            state = torch.zeros_like(state)
        for token in range(begin, end):
            state = _go_on(rule, tokens, token, state)
        rows.store(step.tables[sequence], state.flatten(0, 1))


def _go_on(rule: DeltaRule, tokens: DeltaTokens, token: int, state: torch.Tensor) -> torch.Tensor:
    """The state [H, value_size, key_size] behind one token, whose output is written."""
    query, key = (_of_heads(each[token], rule, state) for each in (tokens.query, tokens.key))
    change = tokens.value[token].to(state.dtype).view(rule.num_heads, rule.value_size)
    state = state * _decays(rule, tokens, token, state).exp()
    if tokens.strength is not None:
        query, key = _normalised(query), _normalised(key)
        strength = rule.strength_scale * torch.sigmoid(tokens.strength[token].to(state.dtype))
        change = (change - (state @ key[..., None])[..., 0]) * strength[:, None]
    state = state + change[..., None] * key[:, None]
    tokens.out[token] = (state @ query[..., None] * rule.scale).flatten()
    return state


def _of_heads(row: torch.Tensor, rule: DeltaRule, state: torch.Tensor) -> torch.Tensor:
    """[H, key_size] of a token's queries or keys."""
    heads = row.to(state.dtype).view(rule.key_heads, rule.key_size)
    return heads.repeat_interleave(rule.num_heads // rule.key_heads, dim=0)


def _normalised(rows: torch.Tensor) -> torch.Tensor:
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + _LEAST_SQUARE)


def _decays(rule: DeltaRule, tokens: DeltaTokens, token: int, state: torch.Tensor) -> torch.Tensor:
    """g [H, 1, 1 or key_size]."""
    rate = rule.rate.to(state.dtype)[:, None, None]
    if tokens.decay is None or rule.decay_bias is None:
        return -rate
    grown = functional.softplus(tokens.decay[token].to(state.dtype) + rule.decay_bias)
    return -rate * grown.view(rule.num_heads, 1, -1)
