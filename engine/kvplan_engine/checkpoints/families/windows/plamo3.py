"""PLaMo 3: a window of each layer's own, four norms, normalised heads. It is described and not run."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms
from kvplan_engine.checkpoints.fields import window
from kvplan_engine.description.model import Layer, ModelDescription


def read_plamo3(config: dict[str, Any]) -> ModelDescription:
    """As vLLM reads it (vllm/model_executor/models/plamo3.py)."""
    norm = norms(config, "rms_plus_one", "both")
    plain = {**config, "attention_bias": False}
    layers = [
        Layer((attention(plain, kept=window(tokens), head_norm="head"),), mlp(config, bias=False), norm)
        for tokens in config["interleaved_sliding_window"]
    ]
    return model(config, layers, norm, max_positions=None)
