"""The recurrences of Mamba and Mamba 2: what they are, and their definitions in plain torch.

Both keep rows of N elements, h[t] = exp(step decay) h[t - 1] + step x[t] B[t], and give y[t] = h[t] . C[t] + skip x[t]
with step = softplus(what the layer computes + step_bias). In Mamba (Gu and Dao, 2023) every channel has a step, a row,
and a decay for each of its elements; in Mamba 2 (Dao and Gu, 2024) a head of several rows has one step and one decay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kvplan_engine.kernels.states.rows import StateRows, StateStep


@dataclass(frozen=True, slots=True)
class ScanInputs:
    """Inputs of T tokens: x [T, C]; steps [T, C], Mamba 2 [T, heads], before bias and softplus; b, c [T, groups N]."""

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


def scan_mamba1(inputs: ScanInputs, out: Tensor, mamba: Mamba1, rows: StateRows, step: StateStep) -> None:
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


def scan_mamba2(inputs: ScanInputs, out: Tensor, mamba: Mamba2, rows: StateRows, step: StateStep) -> None:
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


def _past(rows: StateRows, step: StateStep, sequence: int, begin: int) -> Tensor:
    """The state that the sequence's tokens from row ``begin`` on start from, [rows, N] of at least float32."""
    state = rows.load(step.tables[sequence])
    state = state if state.dtype == torch.float64 else state.float()
    return torch.zeros_like(state) if step.is_new(begin) else state
