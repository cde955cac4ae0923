"""CWM: Llama with one full layer in front of every three with a window. It is described and not run."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms, window
from kvplan_engine.description.model import Layer, ModelDescription


def read_cwm(config: dict[str, Any]) -> ModelDescription:
    """transformers: CwmModel."""
    norm = norms(config)
    kinds = config.get("layer_types") or [
        "sliding_attention" if index % 4 else "full_attention" for index in range(int(config["num_hidden_layers"]))
    ]
    plain = {**config, "attention_bias": False}
    layers = [Layer((attention(plain, kept=window(config, kind, 8192)),), mlp(config), norm) for kind in kinds]
    return model(config, layers, norm, max_positions=131072)
