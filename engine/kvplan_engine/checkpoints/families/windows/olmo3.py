"""OLMo 3: three layers with a window and one without; norms behind the blocks, queries and keys normalised at once."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope, window
from kvplan_engine.checkpoints.fields import head_size
from kvplan_engine.description.mixers import Attention, Rope
from kvplan_engine.description.model import Layer, ModelDescription


def read_olmo3(config: dict[str, Any]) -> ModelDescription:
    """transformers: Olmo3Model."""
    norm = norms(config, "rms", "after")
    feed_forward = mlp(config, bias=False)
    layers = [Layer((_attention(config, kind),), feed_forward, norm) for kind in by_period(config, 4)]
    return model(config, layers, norm)


def _attention(config: dict[str, Any], kind: str) -> Attention:
    size = head_size(config)
    theta = float(config.get("rope_theta", 10000.0))
    scaled = kind == "full_attention" or "rope_parameters" in config
    positions = rope(config, size, kind) if scaled else Rope(theta, size)  # a scaling is for full layers alone
    return attention(config, kept=window(config, kind, 4096), rope=positions, head_norm="all")
