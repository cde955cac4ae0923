"""Sarvam 105B: latent attention and experts by Bailing's keys. Mistral Large 3: DeepSeek V3 with a softmax."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import mlp, model, norms
from kvplan_engine.checkpoints.families.latent.deepseek import read_deepseek
from kvplan_engine.checkpoints.families.latent.parts import latent_attention
from kvplan_engine.checkpoints.families.mixtures.parts import bailing_mixture, whole
from kvplan_engine.description.feed_forward import FeedForward
from kvplan_engine.description.model import Layer, ModelDescription


def read_mistral_large3(config: dict[str, Any]) -> ModelDescription:
    """Read it by the keys that vLLM makes of its params.json."""
    return read_deepseek({"norm_topk_prob": True, **config, "scoring_func": "softmax"})


def read_sarvam_mla(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does: its code comes with the checkpoint."""
    norm, mixer = norms(config), latent_attention(config)
    mixture = bailing_mixture(config, scoring="sigmoid", scale=2.5, correction=True, shared=1)
    first, every = whole(config, "first_k_dense_replace", default=1), whole(config, "moe_layer_freq", default=1)
    layers = []
    for index in range(int(config["num_hidden_layers"])):
        is_sparse = index >= first and (index - first) % every == 0
        part: FeedForward = mixture if is_sparse else mlp(config, bias=False)
        layers.append(Layer((mixer,), part, norm))
    return model(config, layers, norm)
