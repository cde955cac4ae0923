"""DeepSeek V4: compressed attention, four residual streams (hyper-connections), first layers that route by a hash."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import mlp, model, norms, rope
from kvplan_engine.checkpoints.families.latent.parts import indexer
from kvplan_engine.checkpoints.families.latent.streams import head_shapes, stream_shapes
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import CompressedAttention, Kept, Rope
from kvplan_engine.description.model import Layer, ModelDescription

_INDEXED_RATIO = 4
"""Layers that keep one vector in four choose among them; of those with one in 128, all are read."""

_RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def read_deepseek_v4(config: dict[str, Any]) -> ModelDescription:
    """transformers: DeepseekV4Model."""
    norm = norms(config)
    others = stream_shapes(config)
    layers = [
        Layer((_attention(config, ratio),), _mixture(config, hashed), norm, others=others)
        for ratio, hashed in zip(_ratios(config), _hashed_layers(config), strict=True)
    ]
    return model(config, layers, norm, others=head_shapes(config))


def _ratios(config: dict[str, Any]) -> list[int | None]:
    """``compress_ratios``, with 0 for the window alone; the list goes on with the layers of multi-token prediction.

    transformers 5 writes ``layer_types`` instead, and ``compress_rates`` of the kinds that compress.
    """
    number = int(config["num_hidden_layers"])
    if config.get("compress_ratios") is None and config.get("layer_types") is not None:
        rates = {"sliding_attention": 0, **_RATES, **(config.get("compress_rates") or {})}
        return [int(rates[kind]) or None for kind in config["layer_types"]]
    return [int(ratio) or None for ratio in config["compress_ratios"][:number]]


def _hashed_layers(config: dict[str, Any]) -> list[bool]:
    kinds = config.get("mlp_layer_types")
    if kinds is not None and "num_hash_layers" not in config:
        return [kind == "hash_moe" for kind in kinds]
    number, hashed = int(config["num_hidden_layers"]), int(config.get("num_hash_layers", 3))
    return [index < hashed for index in range(number)]


def _attention(config: dict[str, Any], ratio: int | None) -> CompressedAttention:
    return CompressedAttention(
        num_heads=int(config["num_attention_heads"]),
        head_size=int(config.get("head_dim", 512)),
        kept=Kept("window", int(config.get("sliding_window", 128))),
        ratio=ratio,
        indexer=indexer(config) if ratio == _INDEXED_RATIO else None,
        rope=_rope(config, ratio),
        q_rank=int(config["q_lora_rank"]),
        output_groups=int(config["o_groups"]),
        output_rank=int(config["o_lora_rank"]),
    )


def _rope(config: dict[str, Any], ratio: int | None) -> Rope:
    """Layers that compress have a base of their own, and the scaling; the others have neither."""
    size = int(config.get("qk_rope_head_dim", 64))
    kinds = config.get("rope_parameters") or {}
    if "compress" in kinds:  # as transformers 5 writes them
        parameters = kinds["main" if ratio is None else "compress"]
        return rope({**config, "rope_parameters": parameters}, size, rotary_size=size, neighbours=True)
    if ratio is None:
        return Rope(float(config.get("rope_theta", 10000.0)), size, neighbours=True)
    own = {**config, "rope_theta": config.get("compress_rope_theta", 160000.0)}
    return rope(own, size, rotary_size=size, neighbours=True)


def _mixture(config: dict[str, Any], hashed: bool) -> Mixture:
    """``hashed``: a table says which experts a token id takes, so no correction chooses them."""
    size, shared = int(config["moe_intermediate_size"]), int(config.get("n_shared_experts") or 0)
    return Mixture(
        int(config["n_routed_experts"]),
        int(config["num_experts_per_tok"]),
        mlp(config, size, bias=False, limit=float(config.get("swiglu_limit", 10.0))),
        scoring="sqrt_softplus",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor", 1.5)),
        correction=not hashed,
        shared=mlp(config, size * shared, bias=False) if shared else None,
    )
