"""Factors of a model's activations that are linear in a weight, and so are multiplied into it when it is loaded."""

from __future__ import annotations

from functools import partial

import torch

from kvplan_engine.description.model import WeightFactor
from kvplan_engine.description.parameters import Parameter


def scaling_of(parameter: Parameter, label: str, factors: tuple[WeightFactor, ...]) -> partial[torch.Tensor] | None:
    """What multiplies a stored tensor of ``parameter`` with the layer's ``factors``; None where none applies.

    label: of the rows that the tensor fills, "" for all of them.
    """
    own = {each.label: each for each in factors if each.part == parameter.part}
    if not own:
        return None
    all_rows = parameter.rows or (("", parameter.shape[0]),)
    rows = [(name, size) for name, size in all_rows if label in ("", name)]
    return partial(_scaled, factors=[(size, _factor(own.get(name), parameter)) for name, size in rows])


def _factor(factor: WeightFactor | None, parameter: Parameter) -> float:
    if factor is None:
        return 1.0
    return factor.bias if parameter.leaf == "bias" else factor.weight


def _scaled(tensor: torch.Tensor, factors: list[tuple[int, float]]) -> torch.Tensor:
    """Runs of rows of ``tensor`` times a factor each, in float32 so that it is rounded once."""
    wide = tensor.float()
    runs = wide.split([size for size, _ in factors])
    return torch.cat([rows * factor for rows, (_, factor) in zip(runs, factors, strict=True)])
