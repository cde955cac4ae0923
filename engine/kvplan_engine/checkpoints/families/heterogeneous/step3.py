"""Step 3: one KV head, queries from a latent that all heads share, experts and a shared one in listed layers."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.model import Layer, ModelDescription


def read_step3(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does: its code comes with the checkpoint."""
    keys = {**config, "max_position_embeddings": _positions(config)}
    norm, sparse = norms(keys), _sparse_layers(keys)
    size, rank = int(keys.get("head_dim") or 256), int(keys.get("share_q_dim") or 2048)
    mixer = attention(keys, size=size, num_kv_heads=1, qkv_bias=False, output_bias=False, query_rank=rank)
    layers = []
    for index in range(int(keys["num_hidden_layers"])):
        part: FeedForward = _mixture(keys) if index in sparse else mlp(keys, bias=False)
        layers.append(Layer((mixer,), part, norm))
    return model(keys, layers, norm)


def _positions(config: dict[str, Any]) -> Any:
    names = ("max_position_embedding", "max_position_embeddings", "max_seq_len")
    return next((config[name] for name in names if config.get(name) is not None), None)


def _sparse_layers(config: dict[str, Any]) -> set[int]:
    named = config.get("moe_layers_enum")
    if named is None:
        return set(range(1, int(config["num_hidden_layers"])))
    return {int(item) for item in (named.split(",") if isinstance(named, str) else named)}


def _mixture(config: dict[str, Any]) -> Mixture:
    return Mixture(
        int(config["moe_num_experts"]),
        int(config["moe_top_k"]),
        mlp(config, int(config["moe_intermediate_size"]), bias=False),
        normalised=bool(config.get("norm_expert_weight", False)),
        shared=mlp(config, int(config["share_expert_dim"]), bias=False),
    )
