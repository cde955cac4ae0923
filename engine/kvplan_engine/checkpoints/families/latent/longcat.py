"""LongCat Flash: two latent attentions and two MLPs a layer, and one mixture, some of whose experts do nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import model, norms
from kvplan_engine.checkpoints.families.latent.parts import latent_attention
from kvplan_engine.checkpoints.fields import activation
from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.model import Layer, ModelDescription, Shape


def read_longcat(config: dict[str, Any]) -> ModelDescription:
    """transformers: LongcatFlashModel. A published layer is two of ours; its mixture stands in the first.

    The MLP of that half is the mixture's shared one: every token takes both.
    """
    norm = norms(config)
    mixer = latent_attention(config)
    act = activation(config.get("hidden_act", "silu"))
    dense = Mlp(int(config["ffn_hidden_size"]), act)
    mixture = Mixture(
        int(config["n_routed_experts"]),
        int(config["moe_topk"]),
        Mlp(int(config["expert_ffn_hidden_size"]), act),
        scale=float(config.get("routed_scaling_factor", 6.0)),
        normalised=False,
        correction=True,
        shared=dense,
        num_idle=int(config.get("zero_expert_num", 0)),
        router_bias=bool(config.get("router_bias", False)),
    )
    halves = [Layer((mixer,), mixture, norm), Layer((mixer,), dense, norm)]
    return model(config, halves * int(config["num_layers"]), norm)


def read_longcat_ngram(config: dict[str, Any]) -> ModelDescription:
    """Read LongCat Flash Lite as vLLM does: tables of hashed n-grams, each of its own size, with a projection."""
    found = read_longcat(config)
    if config.get("ngram_vocab_size_ratio") is None:
        return found
    number = int(config["emb_split_num"]) * (int(config["emb_neighbor_num"]) - 1)
    size, first = found.hidden_size // number, int(config["ngram_vocab_size_ratio"]) * found.vocab_size + 1
    tables = tuple(Shape(f"ngram.{index}.embedding", (first + 2 * index, size)) for index in range(number))
    projections = tuple(Shape(f"ngram.{index}.projection", (found.hidden_size, size)) for index in range(number))
    return replace(found, others=(*found.others, *tables, *projections))
