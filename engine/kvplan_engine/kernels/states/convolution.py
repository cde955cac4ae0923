"""A causal convolution over the tokens of each sequence: what it is, and its definition in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from kvplan_engine.kernels.states.rows import StateRows, StateStep


@dataclass(frozen=True, slots=True)
class Convolution:
    """One filter of K taps for each of C channels: y[t, c] = bias[c] + sum over i of weight[i, c] x[t - K + 1 + i, c].

    weight [K, C] float32, oldest tap first. bias [C] float32. silu: y times sigmoid(y) is what comes out. Its state is
    the last K - 1 inputs, oldest first: K - 1 rows of C.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    silu: bool = True

    @property
    def num_taps(self) -> int:
        return self.weight.shape[0]

    @property
    def num_channels(self) -> int:
        return self.weight.shape[1]


def make_convolution(weight: torch.Tensor, bias: torch.Tensor | None = None, *, silu: bool = True) -> Convolution:
    """Make one of a model's parameters, weight [C, K] and bias [C], which may be freed."""
    return Convolution(weight.float().t().contiguous(), None if bias is None else bias.float(), silu)


def convolve(x: torch.Tensor, out: torch.Tensor, convolution: Convolution, rows: StateRows, step: StateStep) -> None:
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
