"""Random weights from the config alone, for capacity and speed, which do not depend on the weights' values."""

from __future__ import annotations

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import model_parameters

# Values repeat after this many elements: drawing each of billions would take minutes and change nothing.
# A prime, so that no row of a matrix repeats the one before it.
_PERIOD = 1_000_003
_STANDARD_DEVIATION = 0.02


def fill_dummy(weights: Weights, model: ModelDescription, seed: int) -> None:
    """Normal(0, 0.02) matrices, unit norms, zero biases; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.empty(_PERIOD).normal_(0.0, _STANDARD_DEVIATION, generator=generator)
    values = values.to(weights["embedding.weight"].device)
    offset = 0
    for parameter in model_parameters(model):
        if parameter.name not in weights:
            continue  # the layer uses another one's
        tensor = weights[parameter.name]
        if parameter.kind in ("matrix", "other"):
            offset = _fill_repeating(tensor.view(-1), values, offset)
        else:
            tensor.fill_(1.0 if parameter.kind == "norm" else 0.0)


def _fill_repeating(flat: torch.Tensor, values: torch.Tensor, offset: int) -> int:
    """Fill ``flat`` with ``values`` from ``offset`` on, over and over; the offset behind the last one taken."""
    done = 0
    while done < flat.numel():
        count = min(flat.numel() - done, values.numel() - offset)
        flat[done : done + count] = values[offset : offset + count]
        done += count
        offset = (offset + count) % values.numel()
    return offset
