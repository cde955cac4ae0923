"""What layers with a state compute: the operations, and the definition of each in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from kvplan_engine.kernels.arguments import check_rows, check_vector
from kvplan_engine.kernels.states.rows import StateRows, StateStep

_LEAST_SQUARE = 1e-6  # added to the sum of squares that a query or key is divided by the root of


@dataclass(frozen=True, slots=True)
class Convolution:
    """One filter of K taps for each of C channels: y[t, c] = bias[c] + sum over i of weight[i, c] x[t - K + 1 + i, c].

    weight [K, C] float32, oldest tap first. bias [C] float32. silu: y times sigmoid(y) is what comes out. Its state is
    the last K - 1 inputs, oldest first: K - 1 rows of C.
    """

    weight: Tensor
    bias: Tensor | None = None
    silu: bool = True

    @property
    def num_taps(self) -> int:
        return self.weight.shape[0]

    @property
    def num_channels(self) -> int:
        return self.weight.shape[1]


def make_convolution(weight: Tensor, bias: Tensor | None = None, *, silu: bool = True) -> Convolution:
    """Make one of a model's parameters, weight [C, K] and bias [C], which may be freed."""
    return Convolution(weight.float().t().contiguous(), None if bias is None else bias.float(), silu)


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """The gated delta rule of one layer. Each of H heads has a state S [value_size, key_size].

    A token with query q, key k and value v changes it to

        S' = S * exp(g)         d = (v - S' k) * b         S = S' + d k^T         out = S q

    and leaves ``out`` (Yang et al., Gated Delta Networks, 2024; with a g for each element of a key: Kimi Linear, 2025).
    Here g = -rate * softplus(decay + decay_bias), b = strength_scale * sigmoid(strength), k = key / |key|, and q is
    query / |query| times scale.

    Linear attention with fixed decays (lightning attention, MiniMax-01, 2025) is the same without strengths: d = v and
    g = -rate, with queries and keys as they are but for the scale.

    Its state has H x value_size rows of key_size; head h has the query and key of h * key_heads / H. rate [H] float32.
    decay_bias float32: [H], or [H * key_size] where each element of a key decays by itself; None where decays are
    fixed.
    """

    num_heads: int
    key_heads: int
    key_size: int
    value_size: int
    rate: Tensor
    decay_bias: Tensor | None = None
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

    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor
    decay: Tensor | None = None
    strength: Tensor | None = None


@dataclass(frozen=True, slots=True)
class ScanInputs:
    """Inputs of the recurrences of Mamba and Mamba 2.

    Both keep rows of N elements, h[t] = exp(step decay) h[t - 1] + step x[t] B[t], and give
    y[t] = h[t] . C[t] + skip x[t] with step = softplus(what the layer computes + step_bias). In Mamba (Gu and Dao,
    2023) every channel has a step, a row, and a decay for each of its elements; in Mamba 2 (Dao and Gu, 2024) a head of
    several rows has one step and one decay.

    Of T tokens: x [T, C]; steps [T, C], Mamba 2 [T, heads], before bias and softplus; b, c [T, groups N].
    """

    x: Tensor
    steps: Tensor
    b: Tensor
    c: Tensor


@dataclass(frozen=True, slots=True)
class Mamba1:
    """decay [C, N], below 0; skip, step_bias [C]; all float32. Its state is C rows of N."""

    decay: Tensor
    skip: Tensor
    step_bias: Tensor


@dataclass(frozen=True, slots=True)
class Mamba2:
    """decay [heads], below 0; skip, step_bias [heads]; all float32. Its state is heads x ``num_rows`` rows of N.

    num_groups: B and C are shared by as many heads as a group has. Steps stay within least_step and most_step.
    """

    decay: Tensor
    skip: Tensor
    step_bias: Tensor
    num_rows: int
    num_groups: int
    least_step: float = 0.0
    most_step: float = float("inf")

    @property
    def num_heads(self) -> int:
        return self.decay.shape[0]


@dataclass(frozen=True, slots=True)
class Gating:
    """What follows a recurrence: x [T, C] times the ``activation`` of gate [T, C], and a norm.

    That is RMSNorm of each of ``num_groups`` equal parts of a row. weight: of the norm, [C], or [C / num_groups] where
    all groups have the same; None: there is no norm. norm_first: the norm stands before the gate, otherwise behind it.
    """

    weight: Tensor | None = None
    eps: float = 1e-6
    num_groups: int = 1
    norm_first: bool = False
    activation: Literal["silu", "sigmoid"] = "silu"


# What the kernels ask of these on any device, as ``kernels.arguments`` has it: ValueError before anything runs.


def check_delta(rule: DeltaRule, tokens: DeltaTokens, num_tokens: int) -> None:
    """The arguments of ``StateOps.delta_rule``."""
    dtype, heads = tokens.value.dtype, rule.num_heads
    keys, values = rule.key_heads * rule.key_size, heads * rule.value_size
    widths = {"query": keys, "key": keys, "value": values, "out": values}
    if (rule.decay_bias is None) != (tokens.decay is None):
        raise ValueError("decays of tokens come with a bias, and fixed ones without")
    if rule.decay_bias is not None:
        widths["decay"] = heads * (rule.key_size if rule.has_element_decays else 1)
        check_vector("decay_bias", rule.decay_bias, widths["decay"], torch.float32)
    if tokens.strength is not None:
        widths["strength"] = heads
    for name, width in widths.items():
        check_rows(name, getattr(tokens, name), (num_tokens, width), dtype)
    check_vector("rate", rule.rate, heads, torch.float32)


def check_scan(
    inputs: ScanInputs, out: Tensor, mamba: Mamba1 | Mamba2, num_tokens: int, widths: tuple[int, int, int]
) -> None:
    """The arguments of ``StateOps.scan_mamba1`` and ``scan_mamba2``. widths: of x, of the steps, of B and C."""
    x, steps, shared = widths
    named = {"x": (inputs.x, x), "out": (out, x), "steps": (inputs.steps, steps)}
    for name, (tensor, width) in (named | {"b": (inputs.b, shared), "c": (inputs.c, shared)}).items():
        check_rows(name, tensor, (num_tokens, width), out.dtype)
    for weight in (mamba.decay, mamba.skip, mamba.step_bias):
        if weight.dtype is not torch.float32 or not weight.is_contiguous():
            raise ValueError(f"a recurrence's weights are contiguous and float32, not {weight.dtype}")


class StateOps(Protocol):
    """Operations over the tokens of each sequence, which go on from its state and leave the new one in its place.

    Activations of float32 or bfloat16 have rows of T tokens with a stride of their own; the kernels compute in float32.
    IndexError where a sequence's table names a block that the pool does not have.
    """

    def convolve(self, x: Tensor, out: Tensor, convolution: Convolution, rows: StateRows, step: StateStep) -> None:
        """out [T, C] = ``convolution`` of x [T, C] and the inputs before them: see ``Convolution``. out may be x."""
        ...

    def scan_mamba1(self, inputs: ScanInputs, out: Tensor, mamba: Mamba1, rows: StateRows, step: StateStep) -> None:
        """out [T, C] of the recurrence: see ``ScanInputs``. out may be ``inputs.x``."""
        ...

    def scan_mamba2(self, inputs: ScanInputs, out: Tensor, mamba: Mamba2, rows: StateRows, step: StateStep) -> None:
        """out [T, heads x rows] of the recurrence: see ``ScanInputs``. out may be ``inputs.x``."""
        ...

    def gate_rows(self, x: Tensor, gate: Tensor, gating: Gating) -> None:
        """x [T, C] times silu(gate [T, C]), in place, with the norm of ``gating``."""
        ...

    def delta_rule(self, rule: DeltaRule, tokens: DeltaTokens, rows: StateRows, step: StateStep) -> None:
        """``tokens.out`` [T, H * value_size] = what ``rule`` makes of the step's tokens: see ``DeltaRule``."""
        ...


class TorchStates:
    """The definitions, on any device: sequence after sequence, token after token where an operation asks for it."""

    def convolve(self, x: Tensor, out: Tensor, convolution: Convolution, rows: StateRows, step: StateStep) -> None:
        """See StateOps.convolve."""
        for sequence, begin, end in step.sequences():
            past = rows.load(step.tables[sequence]).float()
            if step.is_new(begin):
                past.zero_()
            inputs = torch.cat([past, x[begin:end].float()])
            rows.store(step.tables[sequence], inputs[end - begin :])
            result = functional.conv1d(
                inputs.t()[None], convolution.weight.t()[:, None], convolution.bias, groups=convolution.num_channels
            )[0].t()
            out[begin:end] = functional.silu(result) if convolution.silu else result

    def scan_mamba1(self, inputs: ScanInputs, out: Tensor, mamba: Mamba1, rows: StateRows, step: StateStep) -> None:
        """See StateOps.scan_mamba1."""
        for sequence, begin, end in step.sequences():
            state = _past(rows, step, sequence, begin)
            x, steps, b, c = (each[begin:end].to(state.dtype) for each in (inputs.x, inputs.steps, inputs.b, inputs.c))
            steps = functional.softplus(steps + mamba.step_bias)
            for token in range(end - begin):
                decayed = (steps[token, :, None] * mamba.decay).exp() * state
                state = decayed + (steps[token] * x[token])[:, None] * b[token]
                out[begin + token] = state @ c[token] + mamba.skip * x[token]
            rows.store(step.tables[sequence], state)

    def scan_mamba2(self, inputs: ScanInputs, out: Tensor, mamba: Mamba2, rows: StateRows, step: StateStep) -> None:
        """See StateOps.scan_mamba2."""
        heads, groups = mamba.num_heads, mamba.num_groups
        for sequence, begin, end in step.sequences():
            flat = _past(rows, step, sequence, begin)
            state = flat.view(heads, mamba.num_rows, -1)
            x, steps, b, c = (each[begin:end].to(flat.dtype) for each in (inputs.x, inputs.steps, inputs.b, inputs.c))
            x = x.unflatten(1, (heads, -1))
            b, c = (each.unflatten(1, (groups, -1)).repeat_interleave(heads // groups, 1) for each in (b, c))
            steps = functional.softplus(steps + mamba.step_bias).clamp(mamba.least_step, mamba.most_step)
            decays = (steps * mamba.decay).exp()
            for token in range(end - begin):
                added = (steps[token, :, None] * x[token])[..., None] * b[token, :, None]
                state = decays[token, :, None, None] * state + added
                result = (state @ c[token, :, :, None]).squeeze(-1) + mamba.skip[:, None] * x[token]
                out[begin + token] = result.flatten()
            rows.store(step.tables[sequence], state.flatten(0, 1))

    def gate_rows(self, x: Tensor, gate: Tensor, gating: Gating) -> None:
        """See StateOps.gate_rows."""
        wide = x.float() if x.dtype != torch.float64 else x
        activate = functional.silu if gating.activation == "silu" else torch.sigmoid
        factor = activate(gate.to(wide.dtype))
        if gating.norm_first:
            x.copy_(_gating_normalised(wide, gating) * factor)
        else:
            x.copy_(_gating_normalised(wide * factor, gating))

    def delta_rule(self, rule: DeltaRule, tokens: DeltaTokens, rows: StateRows, step: StateStep) -> None:
        """See StateOps.delta_rule. Token after token."""
        for sequence, begin, end in step.sequences():
            state = rows.load(step.tables[sequence]).to(torch.promote_types(rows.dtype, torch.float32))
            state = state.view(rule.num_heads, rule.value_size, rule.key_size)
            if step.is_new(begin):
                state = torch.zeros_like(state)
            for token in range(begin, end):
                state = _go_on(rule, tokens, token, state)
            rows.store(step.tables[sequence], state.flatten(0, 1))


def _past(rows: StateRows, step: StateStep, sequence: int, begin: int) -> Tensor:
    """The state that the sequence's tokens from row ``begin`` on start from, [rows, N] of at least float32."""
    state = rows.load(step.tables[sequence])
    state = state if state.dtype == torch.float64 else state.float()
    return torch.zeros_like(state) if step.is_new(begin) else state


def _gating_normalised(x: Tensor, gating: Gating) -> Tensor:
    if gating.weight is None:
        return x
    groups = x.unflatten(1, (gating.num_groups, -1))
    scaled = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + gating.eps)
    weight = gating.weight.to(x.dtype)
    return (scaled * weight.view(-1, groups.shape[2])).flatten(1)


def _go_on(rule: DeltaRule, tokens: DeltaTokens, token: int, state: Tensor) -> Tensor:
    """The state [H, value_size, key_size] behind one token, whose output is written."""
    query, key = (_of_heads(each[token], rule, state) for each in (tokens.query, tokens.key))
    change = tokens.value[token].to(state.dtype).view(rule.num_heads, rule.value_size)
    state = state * _decays(rule, tokens, token, state).exp()
    if tokens.strength is not None:
        query, key = _delta_normalised(query), _delta_normalised(key)
        strength = rule.strength_scale * torch.sigmoid(tokens.strength[token].to(state.dtype))
        change = (change - (state @ key[..., None])[..., 0]) * strength[:, None]
    state = state + change[..., None] * key[:, None]
    tokens.out[token] = (state @ query[..., None] * rule.scale).flatten()
    return state


def _of_heads(row: Tensor, rule: DeltaRule, state: Tensor) -> Tensor:
    """[H, key_size] of a token's queries or keys."""
    heads = row.to(state.dtype).view(rule.key_heads, rule.key_size)
    return heads.repeat_interleave(rule.num_heads // rule.key_heads, dim=0)


def _delta_normalised(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + _LEAST_SQUARE)


def _decays(rule: DeltaRule, tokens: DeltaTokens, token: int, state: Tensor) -> Tensor:
    """g [H, 1, 1 or key_size]."""
    rate = rule.rate.to(state.dtype)[:, None, None]
    if tokens.decay is None or rule.decay_bias is None:
        return -rate
    grown = functional.softplus(tokens.decay[token].to(state.dtype) + rule.decay_bias)
    return -rate * grown.view(rule.num_heads, 1, -1)
