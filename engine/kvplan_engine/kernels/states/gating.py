"""What follows a recurrence: its output times silu of a gate, mostly with a norm. The definition in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Gating:
    """x [T, C] times the ``activation`` of gate [T, C], and RMSNorm of each of ``num_groups`` equal parts of a row.

    weight: of the norm, [C], or [C / num_groups] where all groups have the same; None: there is no norm. norm_first:
    the norm stands before the gate, otherwise behind it.
    """

    weight: Tensor | None = None
    eps: float = 1e-6
    num_groups: int = 1
    norm_first: bool = False
    activation: Literal["silu", "sigmoid"] = "silu"


def gate_rows(x: Tensor, gate: Tensor, gating: Gating) -> None:
    """See StateOps.gate_rows."""
    wide = x.float() if x.dtype != torch.float64 else x
    activate = functional.silu if gating.activation == "silu" else torch.sigmoid
    factor = activate(gate.to(wide.dtype))
    if gating.norm_first:
        x.copy_(_normalised(wide, gating) * factor)
    else:
        x.copy_(_normalised(wide * factor, gating))


def _normalised(x: Tensor, gating: Gating) -> Tensor:
    if gating.weight is None:
        return x
    groups = x.unflatten(1, (gating.num_groups, -1))
    scaled = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + gating.eps)
    weight = gating.weight.to(x.dtype)
    return (scaled * weight.view(-1, groups.shape[2])).flatten(1)
