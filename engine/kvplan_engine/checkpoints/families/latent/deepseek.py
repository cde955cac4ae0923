"""Latent attention (MLA) and experts: DeepSeek V2, V3 and V3.2, Kimi K2, GLM 4.7 Flash and 5, Mistral 4."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import mlp, model, norms
from kvplan_engine.checkpoints.families.latent.parts import indexer, latent_attention
from kvplan_engine.checkpoints.families.mixtures.parts import whole
from kvplan_engine.checkpoints.families.mixtures.table import read_deepseek_moe
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.model import Layer, ModelDescription


def read_deepseek(config: dict[str, Any]) -> ModelDescription:
    """transformers: DeepseekV2Model, DeepseekV3Model, DeepseekV32Model, GlmMoeDsaModel, Mistral4Model.

    Where a latent's heads have no size (DeepSeek OCR), it has the attention of DeepSeek's first mixture.
    """
    if config.get("qk_nope_head_dim") == 0 and config.get("qk_rope_head_dim") == 0:
        return read_deepseek_moe(config)
    norm = norms(config)
    blocks, indexed = _blocks(config), _indexed_layers(config)
    dense, mixture = mlp(config, bias=False), _mixture(config)
    layers = []
    for block, has_indexer in zip(blocks, indexed, strict=True):
        index = indexer(config) if has_indexer else None
        top_k = config.get("index_topk")
        sparse = {"indexer": index, "sparse_top_k": None if top_k is None else int(top_k)}
        mixer = latent_attention(config, growing_scale=_growing_scale(config), **sparse)
        feed_forward: FeedForward = mixture if block == "sparse" else dense
        layers.append(Layer((mixer,), feed_forward, norm))
    return model(config, layers, norm)


def _growing_scale(config: dict[str, Any]) -> tuple[float, int] | None:
    """Mistral 4's queries grow with their position."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    beta = parameters.get("llama_4_scaling_beta")
    return None if not beta else (float(beta), int(parameters["original_max_position_embeddings"]))


def _blocks(config: dict[str, Any]) -> list[str]:
    """Which layers have experts: all but the first few, or one in ``moe_layer_freq``."""
    if config.get("mlp_layer_types") is not None:
        return list(config["mlp_layer_types"])[: int(config["num_hidden_layers"])]
    dense, every = int(config.get("first_k_dense_replace", 0)), int(config.get("moe_layer_freq", 1))
    return [
        "sparse" if index >= dense and index % every == 0 else "dense"
        for index in range(int(config["num_hidden_layers"]))
    ]


def _indexed_layers(config: dict[str, Any]) -> list[bool]:
    """GLM 5.2's "shared" layers use the choice of the last layer that has an indexer."""
    number = int(config["num_hidden_layers"])
    if config.get("index_topk") is None:
        return [False] * number
    kinds = config.get("indexer_types") or ["full"] * number
    return [kind == "full" for kind in kinds[:number]]


def _mixture(config: dict[str, Any]) -> Mixture:
    size, shared = int(config["moe_intermediate_size"]), int(config.get("n_shared_experts") or 0)
    sigmoid = config.get("scoring_func", _default_scoring(config)) == "sigmoid"
    by_groups = config.get("topk_method") != "greedy"
    of_best_two = sigmoid or config.get("model_type") == "mistral4"
    return Mixture(
        whole(config, "n_routed_experts", "num_local_experts"),
        int(config["num_experts_per_tok"]),
        mlp(config, size, bias=False),
        scoring="sigmoid" if sigmoid else "softmax",
        normalised=bool(config.get("norm_topk_prob", sigmoid)),
        scale=float(config.get("routed_scaling_factor", 1.0)),
        correction=sigmoid,
        num_groups=whole(config, "n_group", default=1) if by_groups else 1,
        top_groups=whole(config, "topk_group", default=1) if by_groups else 1,
        group_scoring="top2_sum" if of_best_two else "max",
        shared=mlp(config, size * shared, bias=False) if shared else None,
    )


def _default_scoring(config: dict[str, Any]) -> str:
    return "softmax" if config.get("model_type") in ("deepseek_v2", "mistral4") else "sigmoid"
