"""Loads a model's files as the engine does, as far as its weights."""

from __future__ import annotations

from pathlib import Path

import torch

from kvplan_engine.checkpoints.loaders import load_weights, read_config
from kvplan_engine.checkpoints.weights import allocate_weights
from kvplan_engine.description.parameters import num_parameters
from kvplan_engine.errors import EngineError

_MOST_PARAMETERS = 1_000_000
"""More are not allocated: the engine would compare them with the device's memory first."""


def load_by_the_engine(source: Path, load_format: str) -> str:
    """Read config and weights, and return ``read``, ``refused`` or ``too large``. Raises what is no EngineError."""
    try:
        model = read_config(source)
        if num_parameters(model) > _MOST_PARAMETERS:
            return "too large"
        weights = allocate_weights(model, torch.float32, torch.device("cpu"))
        load_weights(weights, model, source, load_format, 0)
    except EngineError:
        return "refused"
    return "read"
