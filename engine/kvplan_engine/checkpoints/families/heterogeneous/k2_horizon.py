"""K2 Horizon: gated attention, with values from a mixture where a layer has experts. It is described and not run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, norms
from kvplan_engine.checkpoints.families.mixtures.parts import decoder, shared_mlp, stepped
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import Layer, ModelDescription, Shape
from kvplan_engine.errors import EngineError


def read_k2_horizon(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/k2_horizon.py)."""
    head_norm = "per_head" if config.get("query_key_norm") else "none"
    gate = "separate" if config.get("attention_gate_func") else "none"
    mixer = attention(config, head_norm=head_norm, gate=gate, gate_activation="softplus")
    experts = int(config["num_experts"])
    sparse = stepped(config) if experts else [False] * int(config["num_hidden_layers"])
    dense = mlp(config, bias=False)
    mixture = _mixture(config, experts) if experts else dense
    found = decoder(config, norms(config), mixer, mixture, sparse, dense=dense, max_positions=None)  # type: ignore[arg-type]
    values = int(config["mova_num_experts"])
    if not values:
        return found
    changed = {layer: _routed_values(config, layer, values) for layer in found.distinct_layers}
    return replace(found, layers=tuple(changed[layer] for layer in found.layers))


def _routed_values(config: dict[str, Any], layer: Layer, values: int) -> Layer:
    """``values`` - 1 matrices of values beside the one that attention has, and a router of them."""
    (mixer,) = layer.mixers
    if not isinstance(layer.feed_forward, Mixture):
        return layer
    if config.get("attention_bias"):
        raise EngineError("the engine does not know biases beside routed values (attention_bias, mova_num_experts).")
    hidden = int(config["hidden_size"])
    size = mixer.num_kv_heads * mixer.value_size  # type: ignore[union-attr]
    shapes: tuple[Shape, ...] = (
        Shape("value_router", (values, hidden)),
        Shape("value_experts", (values - 1, size, hidden)),
    )
    if config.get("moe_gate_bias"):
        shapes += (Shape("value_router.bias", (values,)),)
    return replace(layer, others=shapes)


def _mixture(config: dict[str, Any], experts: int) -> Mixture:
    size = int(config["moe_intermediate_size"])
    plain = {**config, "mlp_bias": False}
    return Mixture(
        experts,
        int(config["num_experts_per_tok"]),
        mlp(config, size, bias=False),
        scoring="sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("router_scaling_factor") or 1.0),
        correction=bool(config.get("moe_gate_bias")),
        shared=shared_mlp(plain, size * int(config.get("num_shared_experts") or 0)),
    )
