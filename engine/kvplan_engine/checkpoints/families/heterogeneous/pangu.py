"""openPangu Pro MoE V2: experts behind dense layers, and keys of its own that every token attends to. It is not run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import attention, norms, rope
from kvplan_engine.checkpoints.families.mixtures.parts import after_dense_ones, decoder, grouped_sigmoid
from kvplan_engine.checkpoints.fields import window
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription, Shape
from kvplan_engine.errors import EngineError


def read_pangu_pro(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/openpangu.py): with keys of its own no layer keeps a window."""
    for key in ("kv_lora_rank", "qk_nope_head_dim"):
        if config.get(key):
            raise EngineError(f"the engine does not know what layers of openPangu keep with {key}.")
    bias = bool(config.get("attention_bias") or config.get("bias"))
    biases: dict[str, Any] = {"qkv_bias": bool(config.get("qkv_bias", bias)), "output_bias": bias}
    count = int(config.get("param_sink_number") or 0)
    norm = norms(config, places="both" if config.get("sandwich_norm") else "before")
    mixture = replace(_mixture(config), correction=bool(config.get("router_enable_expert_bias")))
    sparse = after_dense_ones(config)
    if not count:
        turns = config.get("interleaved_sliding_window") or config.get("sliding_window")
        turns = turns if isinstance(turns, list) else [turns]

        def mixer(index: int) -> Attention:
            return attention(config, kept=window(turns[index % len(turns)]), **biases)

        return decoder(config, norm, mixer, mixture, sparse, max_positions=None)
    found = decoder(config, norm, _with_sinks(config, biases), mixture, sparse, max_positions=None)
    shapes = _sinks(config, count)
    changed = {layer: replace(layer, others=shapes) for layer in found.distinct_layers}
    return replace(found, layers=tuple[Layer, ...](changed[layer] for layer in found.layers))


def _with_sinks(config: dict[str, Any], biases: dict[str, Any]) -> Attention:
    turned = int(config["qk_rope_dim"])
    size = int(config["qk_nope_dim"]) + turned
    positions = rope({"rope_theta": 10000.0}, size, rotary_size=turned, neighbours=True)
    return attention(config, size=size, value_size=int(config["v_channels"]), rope=positions, **biases)


def _sinks(config: dict[str, Any], count: int) -> tuple[Shape, ...]:
    """Keys, values where they are not zeros, and the norm of each head's key."""
    heads, size = int(config["num_key_value_heads"]), int(config["qk_nope_dim"]) + int(config["qk_rope_dim"])
    shapes: tuple[Shape, ...] = (Shape("sink_key", (count, heads, size)), Shape("k_layernorm", (size,)))
    if config.get("param_sink_with_value"):
        shapes += (Shape("sink_value", (count, heads, int(config["v_channels"]))),)
    return shapes


def _mixture(config: dict[str, Any]) -> Mixture:
    return grouped_sigmoid({**config, "mlp_bias": False})
