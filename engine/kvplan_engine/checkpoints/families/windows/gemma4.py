"""Gemma 4: full layers have larger heads and values that are the keys; a mixture may stand beside the MLP."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope, window
from kvplan_engine.checkpoints.families.windows.gemma3n import per_layer_shapes, per_layer_tables, read_layer
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription, Shape


def read_gemma4(config: dict[str, Any]) -> ModelDescription:
    """transformers: Gemma4TextModel."""
    norm = norms(config, "rms", "both")
    kinds = _layer_types(config)
    first_shared = len(kinds) - int(config.get("num_kv_shared_layers", 0))
    layers = []
    for index, kind in enumerate(kinds):
        reads = read_layer(kinds, index, first_shared) if first_shared < len(kinds) else None
        feed_forward = _feed_forward(config, double=reads is not None)
        layers.append(Layer((_attention(config, kind, reads),), feed_forward, norm, others=_layer_shapes(config)))
    cap = config.get("final_logit_softcapping")
    return model(
        config,
        layers,
        norm,
        max_positions=131072,
        tied=True,
        embedding_scale=float(config["hidden_size"]) ** 0.5,
        logits_softcap=float(cap) if cap else None,
        others=per_layer_tables(config) if _per_layer_size(config) else (),
    )


def _layer_types(config: dict[str, Any]) -> list[str]:
    """The last layer is full, whatever the config says."""
    return [*by_period(config, 6)[:-1], "full_attention"]


def _per_layer_size(config: dict[str, Any]) -> int:
    return int(config.get("hidden_size_per_layer_input", 256))


def _attention(config: dict[str, Any], kind: str, reads_layer: int | None) -> Attention:
    full = kind == "full_attention"
    same = full and bool(config.get("attention_k_eq_v", False))
    kv_heads = (config.get("num_global_key_value_heads") if same else None) or config["num_key_value_heads"]
    size = int(config.get("global_head_dim", 512) if full else config.get("head_dim", 256))
    return attention(
        config,
        kept=window(config, kind, 512),
        size=size,
        rope=rope(config, size, kind, theta=1000000.0 if full else 10000.0, partial=0.25 if full else 1.0),
        num_kv_heads=int(kv_heads),
        scale=1.0,
        head_norm="head",
        reads_layer=reads_layer,
        value_is_key=same,
    )


def _feed_forward(config: dict[str, Any], *, double: bool) -> FeedForward:
    """An MLP, which a mixture stands beside; of layers that read earlier KV it may be twice as wide."""
    wide = double and bool(config.get("use_double_wide_mlp", False))
    plain = mlp(config, int(config["intermediate_size"]) * (2 if wide else 1), activation="gelu_tanh", bias=False)
    if not config.get("enable_moe_block", False):
        return plain
    expert = mlp(config, int(config["moe_intermediate_size"]), activation="gelu_tanh", bias=False)
    return Mixture(int(config["num_experts"]), int(config["top_k_experts"]), expert, shared=plain)


def _layer_shapes(config: dict[str, Any]) -> tuple[Shape, ...]:
    hidden = int(config["hidden_size"])
    shapes = [Shape("layer_scalar", (1,))]
    if _per_layer_size(config):
        shapes += per_layer_shapes(config)
    if config.get("enable_moe_block", False):
        shapes.append(Shape("router.scale", (hidden,)))
        shapes.append(Shape("router.per_expert_scale", (int(config["num_experts"]),)))
        shapes += [Shape(f"{name}_norm", (hidden,)) for name in ("before_experts", "after_mlp", "after_experts")]
    return tuple(shapes)
