"""A.X K1 and openPangu Ultra MoE: DeepSeek V3 with more norms. They are described and not run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.latent.deepseek import read_deepseek
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import Layer, ModelDescription, Shape
from kvplan_engine.description.norms import Norms


def read_axk1(config: dict[str, Any]) -> ModelDescription:
    """transformers: AXK1Model. A third norm stands behind the feed-forward."""
    keys = {**config, "attention_bias": False, "scoring_func": "sigmoid"}
    if config.get("first_k_dense_replace") is None:
        keys["first_k_dense_replace"] = 1
    found = read_deepseek(keys)
    behind = (Shape("post_mlp_norm", (found.hidden_size,)),)
    return _changed(found, lambda layer: replace(layer, others=behind))


def read_pangu_ultra(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/openpangu.py): its code comes with the checkpoint."""
    found = read_deepseek({**config, "attention_bias": False, "scoring_func": "sigmoid"})
    corrected = bool(config.get("router_enable_expert_bias", False))
    norms = Norms("rms", found.norm.eps, "both" if config.get("sandwich_norm", False) else "before")

    def changed(layer: Layer) -> Layer:
        part = layer.feed_forward
        part = replace(part, correction=corrected) if isinstance(part, Mixture) else part
        return replace(layer, feed_forward=part, norms=norms)

    return _changed(found, changed)


def _changed(model: ModelDescription, change: Callable[[Layer], Layer]) -> ModelDescription:
    """``model`` with each of its layers changed, equal ones as one object still."""
    changed = {layer: change(layer) for layer in model.distinct_layers}
    return replace(model, layers=tuple(changed[layer] for layer in model.layers))
