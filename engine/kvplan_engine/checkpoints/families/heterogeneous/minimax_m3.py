"""MiniMax M3: grouped KV heads of which an indexer picks blocks of tokens; a mixture of experts with a clamped gate."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms, rope
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Attention, Indexer
from kvplan_engine.description.model import Layer, ModelDescription


def read_minimax_m3(config: dict[str, Any]) -> ModelDescription:
    """transformers: MiniMaxM3VLTextModel. Norms' weights are stored minus one."""
    config = {**config, "hidden_act": "silu"}  # the checkpoint names the whole gate there, which is said below
    norm = norms(config, "rms_plus_one")
    number = int(config["num_hidden_layers"])
    layers = [
        Layer((_attention(config, sparse),), _feed_forward(config, block), norm)
        for sparse, block in zip(_sparse_layers(config, number), _blocks(config, number), strict=True)
    ]
    return model(config, layers, norm)


def _sparse_layers(config: dict[str, Any], number: int) -> list[bool]:
    if config.get("layer_types") is not None:
        return [kind == "minimax_m3_sparse" for kind in config["layer_types"]]
    flags = _sparse(config).get("sparse_attention_freq")
    return [bool(flag) for flag in flags] if flags is not None else [False] * number


def _sparse(config: dict[str, Any]) -> dict[str, Any]:
    return dict(config.get("sparse_attention_config") or {})


def _blocks(config: dict[str, Any], number: int) -> list[str]:
    if config.get("mlp_layer_types") is not None:
        return list(config["mlp_layer_types"])
    flags = config.get("moe_layer_freq") or [1] * number
    return ["sparse" if flag else "dense" for flag in flags]


def _attention(config: dict[str, Any], sparse: bool) -> Attention:
    size = int(config.get("head_dim", 128))
    rotary = int(config.get("rotary_dim", 64))
    return attention(
        config,
        size=size,
        rope=rope(config, size, rotary_size=rotary),
        qkv_bias=False,
        output_bias=False,
        head_norm="head",
        indexer=_indexer(config) if sparse else None,
    )


def _indexer(config: dict[str, Any]) -> Indexer:
    old = _sparse(config)
    block = int(config.get("index_block_size") or old.get("sparse_block_size", 128))
    return Indexer(
        num_heads=int(config.get("index_n_heads") or old.get("sparse_num_index_heads", 4)),
        head_size=int(config.get("index_head_dim") or old.get("sparse_index_dim", 128)),
        top_k=block * int(config.get("index_topk_blocks") or old.get("sparse_topk_blocks", 16)),
    )


def _feed_forward(config: dict[str, Any], block: str) -> FeedForward:
    options: dict[str, Any] = {"activation": "swiglu_oai", "bias": False}
    options["limit"] = float(config.get("swiglu_limit", 7.0))
    if block == "dense":
        return mlp(config, int(config.get("dense_intermediate_size", 12288)), **options)
    return Mixture(
        int(config["num_local_experts"]),
        int(config["num_experts_per_tok"]),
        mlp(config, **options),
        scoring="sigmoid",
        scale=float(config.get("routed_scaling_factor", 2.0)),
        correction=True,
        shared=mlp(config, int(config.get("shared_intermediate_size", 3072)), **options),
    )
