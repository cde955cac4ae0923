"""Domyn Edge: heads of each layer's own size, windows and positions layer by layer. It is described and not run."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms, rope
from kvplan_engine.checkpoints.fields import window
from kvplan_engine.description.model import Layer, ModelDescription, Shape


def read_domyn_edge(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/domyn_edge.py): keys' norms have a weight, queries' none."""
    plain, norm, part = {**config, "attention_bias": False}, norms(config, places="both"), mlp(config, bias=False)
    layers = []
    for index, kind in enumerate(config["position_layers"]):
        size, left = _head_size(config, index), int(config["window_sizes"][index][0])
        turns = rope(config, size) if kind == "rope" else None
        mixer = attention(plain, size=size, rope=turns, kept=window(left + 1 if left > 0 else None))
        layers.append(Layer((mixer,), part, norm, others=(Shape("k_norm", (size,)),)))
    return model(config, layers, norm, max_positions=None, tied=True)


def _head_size(config: dict[str, Any], index: int) -> int:
    if config.get("head_sizes") is not None:
        return int(config["head_sizes"][index])
    own = config["per_layer_config"].get(str(index)) or {}
    return int(own.get("head_dim") or config["head_dim"])
