"""Step 3; Step 3.5 and 3.7 Flash; Step 5: query heads of each kind of layer, gates, an index of regions; experts."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import (
    after_dense_ones,
    attention,
    by_period,
    decoder,
    mlp,
    norms,
    rope,
    routed,
    whole,
    window,
)
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import Attention, Indexer
from kvplan_engine.description.model import ModelDescription

# Step 3: one KV head, queries from a latent that all heads share, experts and a shared one in listed layers.


def read_step3(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does: its code comes with the checkpoint."""
    keys = {**config, "max_position_embeddings": _positions(config), "num_experts_per_tok": config["moe_top_k"]}
    size, rank = int(keys.get("head_dim") or 256), int(keys.get("share_q_dim") or 2048)
    mixer = attention(keys, size=size, num_kv_heads=1, qkv_bias=False, output_bias=False, query_rank=rank)
    normalised = bool(keys.get("norm_expert_weight", False))
    mixture = routed(keys, "moe_num_experts", whole(keys, "share_expert_dim"), normalised=normalised)
    return decoder(keys, norms(keys), mixer, mixture, _sparse_layers(keys, 1), dense=mlp(keys, bias=False))


def _positions(config: dict[str, Any]) -> Any:
    names = ("max_position_embedding", "max_position_embeddings", "max_seq_len")
    return next((config[name] for name in names if config.get(name) is not None), None)


def _sparse_layers(config: dict[str, Any], first: int) -> list[bool]:
    """A list of numbers, or a text of them, or ``mlp_layer_types``; else all layers from ``first`` on have experts."""
    named = next((config[key] for key in ("moe_layers_enum", "moe_layer_list") if config.get(key) is not None), None)
    if config.get("mlp_layer_types") is not None or named is None:
        return after_dense_ones(config, first)
    items = named.split(",") if isinstance(named, str) else named
    sparse = {int(item) for item in items if str(item).strip()}
    return [index in sparse for index in range(int(config["num_hidden_layers"]))]


# Step 3.5 and 3.7 Flash: windows have more query heads than full layers; a gate per head, a mixture of experts.


def read_step3p7(config: dict[str, Any]) -> ModelDescription:
    """transformers: Step3p7TextModel. Lists may go on with the layers of multi-token prediction, which are left out.

    Norms' weights are stored minus one.
    """
    kinds = by_period(config, 0, "full_attention")
    mixers = [_step3p7_attention(config, kind, index) for index, kind in enumerate(kinds)]
    sparse = _sparse_layers(config, 3)
    return decoder(config, norms(config, "rms_plus_one"), mixers, _step3p7_mixture(config), sparse, dense=mlp(config))


def _step3p7_attention(config: dict[str, Any], kind: str, index: int) -> Attention:
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


def _step3p7_mixture(config: dict[str, Any]) -> Mixture:
    return Mixture(
        int(config.get("moe_num_experts") or config.get("n_routed_experts") or config["num_local_experts"]),
        int(config.get("moe_top_k") or config["num_experts_per_tok"]),
        mlp(config, int(config["moe_intermediate_size"]), bias=False),
        scoring="sigmoid",
        scale=float(config.get("moe_router_scaling_factor", 1.0)),
        correction=True,
        shared=mlp(config, int(config.get("share_expert_dim") or config.get("share_expert_dims") or 1280)),
    )


_REGION_TOKENS = 8


# Step 5: an index of regions of tokens in its full layers, windows with heads of their own, a mixture of experts.


def read_step5(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does, whose class is the first. Norms' weights are stored minus one."""
    keys = {**config, "max_position_embeddings": config.get("max_position_embeddings") or config.get("max_seq_len")}
    mixers = [_step5_attention(config, kind, index) for index, kind in enumerate(by_period(config, 0))]
    norm, sparse, mixture = norms(config, "rms_plus_one"), _sparse_layers(config, 1), _step5_mixture(config)
    return decoder(keys, norm, mixers, mixture, sparse, dense=mlp(config), max_positions=None)


def _step5_attention(config: dict[str, Any], kind: str, index: int) -> Attention:
    other = config.get("attention_other_setting") or {}
    own = {**config, **other} if other.get("attention_type") == kind else config
    slides, size = kind == "sliding_attention", int(own["head_dim"])
    heads = (config.get("swa_num_attention_heads") if slides else None) or own["num_attention_heads"]
    return attention(
        config,
        kept=window(config, kind),
        num_heads=int(heads),
        num_kv_heads=int(own["num_attention_groups"]),
        size=size,
        rope=rope(of_layer(config, index), size, kind),
        head_norm="head",
        gate="head" if config.get("use_head_wise_attn_gate") else "none",
        indexer=None if slides else _indexer(config["sparse_config"]),
    )


def _indexer(config: dict[str, Any]) -> Indexer | None:
    if config.get("enabled") is False:
        return None
    heads, regions = int(config.get("sparse_indexer_num_heads") or 16), int(config.get("topk") or 512)
    return Indexer(heads, 256, regions * _REGION_TOKENS, pool=_REGION_TOKENS, key_dtype="float8_e4m3fn")


def _step5_mixture(config: dict[str, Any]) -> Mixture:
    size, active = int(config["moe_intermediate_size"]), int(config["moe_top_k"])
    return Mixture(
        int(config["moe_num_experts"]),
        active,
        mlp(config, size),
        scoring="sigmoid",
        scale=float(config.get("moe_router_scaling_factor", 1.0)),
        correction=True,
        shared=mlp(config, int(config.get("share_expert_dim") or size * active)),
    )


STEP = (
    Family(("Step3TextForCausalLM",), read_step3),
    Family(("Step3p5ForCausalLM", "Step3p7FlashForCausalLM"), read_step3p7),
    Family(("Step5ForCausalLM",), read_step5),
)
