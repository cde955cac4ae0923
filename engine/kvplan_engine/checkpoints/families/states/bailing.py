"""Ling and Ring 2.5, Ling 3: groups of layers with a state, the last of each with latent attention; experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import mlp, model, norms, rope
from kvplan_engine.checkpoints.families.latent.parts import latent_attention
from kvplan_engine.checkpoints.families.mixtures.parts import after_dense_ones, bailing_mixture, whole
from kvplan_engine.checkpoints.families.states.parts import kimi_delta, lightning
from kvplan_engine.checkpoints.fields import head_size
from kvplan_engine.description.feed_forward import FeedForward
from kvplan_engine.description.mixers import State
from kvplan_engine.description.model import Layer, ModelDescription


def read_bailing_hybrid(config: dict[str, Any]) -> ModelDescription:
    """Read as vLLM does: its code comes with the checkpoint. ValueError for biases everywhere, which nobody knows."""
    if config.get("use_bias"):
        raise ValueError("its layers have biases (use_bias)")
    norm, state, latent = norms(config), _state(config), latent_attention(config)
    period, mixture = whole(config, "layer_group_size", default=1), bailing_mixture(config)
    layers = []
    for index, is_sparse in enumerate(after_dense_ones(config)):
        part: FeedForward = mixture if is_sparse else mlp(config, bias=False)
        layers.append(Layer((state if (index + 1) % period else latent,), part, norm))
    return model(config, layers, norm)


def read_bailing_v3(config: dict[str, Any]) -> ModelDescription:
    """Ling 3, as vLLM reads it: Kimi Delta Attention, and gated latent attention behind each group and at the end."""
    if not config.get("no_kda_lora"):
        raise ValueError("its states have gates of low rank (no_kda_lora)")
    norm, state = norms(config), _kimi_state(config)
    latent, mixture = latent_attention(config, gate=_gate(config)), replace(bailing_mixture(config), correction=True)
    period, number = whole(config, "layer_group_size", default=1), int(config["num_hidden_layers"])
    layers = []
    for index, is_sparse in enumerate(after_dense_ones(config)):
        is_latent = (index + 1) % period == 0 or index >= number - number % period
        part: FeedForward = mixture if is_sparse else mlp(config, bias=False)
        layers.append(Layer((latent if is_latent else state,), part, norm))
    return model(config, layers, norm)


def _gate(config: dict[str, Any]) -> int:
    heads, kind = int(config["num_attention_heads"]), config.get("gated_attention_proj_granularity_type")
    return {"head_wise": heads, "element_wise": heads * int(config["v_head_dim"])}.get(str(kind), 0)


def _kimi_state(config: dict[str, Any]) -> State:
    kernel = whole(config, "short_conv_kernel_size", default=4)
    return kimi_delta(int(config["num_attention_heads"]), head_size(config), kernel, full_gate=True, full_decay=True)


def _state(config: dict[str, Any]) -> State:
    size = head_size(config)
    return lightning(
        int(config["num_attention_heads"]),
        size,
        bias=bool(config.get("use_qkv_bias")),
        norms=bool(config.get("use_qk_norm")),
        rope=rope(config, size),
    )
