"""Step 3.5 and 3.7 Flash: windows have more query heads than full layers; a gate per head, a mixture of experts."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope, window
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription


def read_step3p7(config: dict[str, Any]) -> ModelDescription:
    """transformers: Step3p7TextModel. Lists may go on with the layers of multi-token prediction, which are left out.

    Norms' weights are stored minus one.
    """
    norm = norms(config, "rms_plus_one")
    blocks = _blocks(config)
    layers = [
        Layer((_attention(config, kind, index),), _feed_forward(config, blocks[index]), norm)
        for index, kind in enumerate(by_period(config, 0, "full_attention"))
    ]
    return model(config, layers, norm)


def _blocks(config: dict[str, Any]) -> list[str]:
    if config.get("mlp_layer_types") is not None:
        return list(config["mlp_layer_types"])
    number = int(config["num_hidden_layers"])
    named = config.get("moe_layers_enum")
    if named is None:
        return ["dense" if index < 3 else "sparse" for index in range(number)]
    items = named.split(",") if isinstance(named, str) else named
    sparse = {int(item) for item in items if str(item).strip()}
    return ["sparse" if index in sparse else "dense" for index in range(number)]


def _attention(config: dict[str, Any], kind: str, index: int) -> Attention:
    size = int(config.get("head_dim", 128))
    return attention(
        config,
        kept=window(config, kind),
        num_heads=_heads(config, kind),
        num_kv_heads=_kv_heads(config, kind),
        size=size,
        rope=rope(of_layer(config, index), size, kind),
        head_norm="head",
        gate="head",
    )


def of_layer(config: dict[str, Any], index: int) -> dict[str, Any]:
    """RoPE's base and its part of the head, which the published config lists layer by layer."""
    found = dict(config)
    if isinstance(config.get("rope_theta"), list):
        found["rope_theta"] = config["rope_theta"][index]
    if config.get("partial_rotary_factors") is not None:
        found["partial_rotary_factor"] = config["partial_rotary_factors"][index]
    return found


def _other(config: dict[str, Any]) -> dict[str, Any]:
    return dict(config.get("attention_other_setting") or {})


def _heads(config: dict[str, Any], kind: str) -> int:
    heads = int(config["num_attention_heads"])
    if kind != "sliding_attention":
        return heads
    named = config.get("num_sliding_attention_heads")
    return int(named if named is not None else _other(config).get("num_attention_heads", heads))


def _kv_heads(config: dict[str, Any], kind: str) -> int:
    full = int(config.get("num_attention_groups") or config.get("num_key_value_heads") or 8)
    if kind != "sliding_attention":
        return full
    other = _other(config)
    return int(other.get("num_attention_groups") or other.get("num_key_value_heads") or full)


def _feed_forward(config: dict[str, Any], block: str) -> FeedForward:
    if block == "dense":
        return mlp(config)
    return Mixture(
        int(config.get("moe_num_experts") or config.get("n_routed_experts") or config["num_local_experts"]),
        int(config.get("moe_top_k") or config["num_experts_per_tok"]),
        mlp(config, int(config["moe_intermediate_size"]), bias=False),
        scoring="sigmoid",
        scale=float(config.get("moe_router_scaling_factor", 1.0)),
        correction=True,
        shared=mlp(config, int(config.get("share_expert_dim") or config.get("share_expert_dims") or 1280)),
    )
