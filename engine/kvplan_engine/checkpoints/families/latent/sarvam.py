"""Sarvam 105B: latent attention and experts by Bailing's keys. Mistral Large 3: DeepSeek V3 with a softmax."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import mlp, model, norms
from kvplan_engine.checkpoints.families.latent.deepseek import read_deepseek
from kvplan_engine.checkpoints.families.latent.parts import latent_attention
from kvplan_engine.checkpoints.families.mixtures.parts import shared_mlp, whole
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.model import Layer, ModelDescription


def read_mistral_large3(config: dict[str, Any]) -> ModelDescription:
    """By the keys that vLLM makes of its params.json."""
    return read_deepseek({"norm_topk_prob": True, **config, "scoring_func": "softmax"})


def read_sarvam_mla(config: dict[str, Any]) -> ModelDescription:
    """As vLLM reads it: its code comes with the checkpoint."""
    norm, mixer, mixture = norms(config), latent_attention(config), _mixture(config)
    first, every = whole(config, "first_k_dense_replace", default=1), whole(config, "moe_layer_freq", default=1)
    layers = []
    for index in range(int(config["num_hidden_layers"])):
        is_sparse = index >= first and (index - first) % every == 0
        part: FeedForward = mixture if is_sparse else mlp(config, bias=False)
        layers.append(Layer((mixer,), part, norm))
    return model(config, layers, norm)


def _mixture(config: dict[str, Any]) -> Mixture:
    size = int(config["moe_intermediate_size"])
    shared = whole(config, "moe_shared_expert_intermediate_size", default=size)
    return Mixture(
        whole(config, "num_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, size, bias=False),
        scoring="softmax" if config.get("score_function") == "softmax" else "sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor") or 2.5),
        correction=bool(config.get("moe_router_enable_expert_bias", True)),
        num_groups=whole(config, "n_group", default=1),
        top_groups=whole(config, "topk_group", default=1),
        shared=shared_mlp({**config, "mlp_bias": False}, shared * whole(config, "num_shared_experts", default=1)),
    )
