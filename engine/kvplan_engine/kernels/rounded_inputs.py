"""What weights in few bits are multiplied with where it is rounded too (products/rounded/rounded_rows.h), plainly."""

from __future__ import annotations

import torch

from kvplan_engine.kernels.quantised_weight import QuantisedWeight

LARGEST_CODE = 127
_LEAST = 2.0**-100
"""A group whose largest magnitude is less counts as zeros: 127 / it would leave float32."""


def rounded_inputs(x: torch.Tensor, weight: QuantisedWeight) -> torch.Tensor:
    """x [T, num_inputs] as ``weight`` is multiplied with it: itself where nothing is rounded, otherwise float32.

    Each row's inputs of a group of the weight, in its order, become integers times a scale: their largest magnitude
    / 127, integers to the nearest, ties to even. A NaN where one of them is not finite.
    """
    if not weight.multiplies_integers:
        return x
    order = slice(None) if weight.order is None else weight.order.long()
    groups = x.float()[:, order].unflatten(1, (-1, weight.group_size))
    largest = groups.abs().amax(dim=-1, keepdim=True)
    scales = torch.where(largest.isfinite(), torch.where(largest < _LEAST, 0.0, largest / LARGEST_CODE), torch.nan)
    inverses = torch.full_like(largest, LARGEST_CODE) / largest  # of a scalar torch would multiply with a reciprocal
    integers = torch.where(scales > 0, groups * inverses, 0.0).round()
    rounded = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    rounded[:, order] = (integers * scales).flatten(1)
    return rounded
