"""Latent attention (MLA): DeepSeek V2 to V3.2 and those like it, MiniCPM3, Youtu-LLM, LongCat Flash, Sarvam 105B."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import (
    after_dense_ones,
    decoder,
    mlp,
    norms,
    routed,
    whole,
    with_layers,
)
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.latent.parts import LATENT_NAMES, MISTRAL4_NAMES, indexer, latent_attention
from kvplan_engine.checkpoints.families.mixtures.parts import bailing_mixture
from kvplan_engine.checkpoints.families.mixtures.table import read_deepseek_moe
from kvplan_engine.checkpoints.fields import activation
from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.model import Layer, ModelDescription, Shape
from kvplan_engine.description.norms import Norms


def read_deepseek(config: dict[str, Any]) -> ModelDescription:
    """transformers: DeepseekV2Model, DeepseekV3Model, DeepseekV32Model, GlmMoeDsaModel, Mistral4Model.

    Where a latent's heads have no size (DeepSeek OCR), it has the attention of DeepSeek's first mixture.
    """
    if config.get("qk_nope_head_dim") == 0 and config.get("qk_rope_head_dim") == 0:
        return read_deepseek_moe(config)
    top_k = config.get("index_topk")
    plain = latent_attention(
        config, growing_scale=_growing_scale(config), sparse_top_k=None if top_k is None else int(top_k)
    )
    mixers = [replace(plain, indexer=indexer(config)) if indexed else plain for indexed in _indexed_layers(config)]
    sparse, dense = after_dense_ones(config), mlp(config, bias=False)
    return decoder(config, norms(config), mixers, _mixture(config), sparse, dense=dense)


def _growing_scale(config: dict[str, Any]) -> tuple[float, int] | None:
    """Mistral 4's queries grow with their position."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    beta = parameters.get("llama_4_scaling_beta")
    return None if not beta else (float(beta), int(parameters["original_max_position_embeddings"]))


def _indexed_layers(config: dict[str, Any]) -> list[bool]:
    """GLM 5.2's "shared" layers use the choice of the last layer that has an indexer."""
    number = int(config["num_hidden_layers"])
    if config.get("index_topk") is None:
        return [False] * number
    kinds = config.get("indexer_types") or ["full"] * number
    return [kind == "full" for kind in kinds[:number]]


def _mixture(config: dict[str, Any]) -> Mixture:
    shared = whole(config, "moe_intermediate_size") * whole(config, "n_shared_experts", default=0)
    sigmoid = config.get("scoring_func", _default_scoring(config)) == "sigmoid"
    by_groups = config.get("topk_method") != "greedy"
    of_best_two = sigmoid or config.get("model_type") == "mistral4"
    return routed(
        config,
        ("n_routed_experts", "num_local_experts"),
        shared,
        scoring="sigmoid" if sigmoid else "softmax",
        normalised=bool(config.get("norm_topk_prob", sigmoid)),
        scale=float(config.get("routed_scaling_factor", 1.0)),
        correction=sigmoid,
        num_groups=whole(config, "n_group", default=1) if by_groups else 1,
        top_groups=whole(config, "topk_group", default=1) if by_groups else 1,
        group_scoring="top2_sum" if of_best_two else "max",
    )


def _default_scoring(config: dict[str, Any]) -> str:
    return "softmax" if config.get("model_type") in ("deepseek_v2", "mistral4") else "sigmoid"


# Latent attention without experts: MiniCPM3, Youtu-LLM.


def read_minicpm3(config: dict[str, Any]) -> ModelDescription:
    """transformers: MiniCPM3Model. A block's output is scaled by depth, the last hidden state by width."""
    number, hidden = int(config["num_hidden_layers"]), int(config["hidden_size"])
    scale = float(config.get("scale_depth", 1.0)) / number**0.5
    base = float(config.get("dim_model_base", hidden))
    return decoder(
        config,
        norms(config),
        latent_attention({**config, "rope_interleave": False}),
        mlp(config),
        residual_scale=scale,
        tied=True,
        embedding_scale=float(config.get("scale_emb", 1.0)),
        logits_scale=base / hidden,
    )


def read_youtu(config: dict[str, Any]) -> ModelDescription:
    """transformers: YoutuModel."""
    return decoder(config, norms(config), latent_attention(config), mlp(config, bias=False), tied=True)


# LongCat Flash: two latent attentions and two MLPs a layer, and one mixture, some of whose experts do nothing.


def read_longcat(config: dict[str, Any]) -> ModelDescription:
    """transformers: LongcatFlashModel. A published layer is two of ours; its mixture stands in the first.

    The MLP of that half is the mixture's shared one: every token takes both.
    """
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
    return decoder(config, norms(config), latent_attention(config), [mixture, dense] * int(config["num_layers"]))


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


# A.X K1 and openPangu Ultra MoE: DeepSeek V3 with more norms. They are described and not run.


def read_axk1(config: dict[str, Any]) -> ModelDescription:
    """transformers: AXK1Model. A third norm stands behind the feed-forward."""
    keys = {**config, "attention_bias": False, "scoring_func": "sigmoid"}
    if config.get("first_k_dense_replace") is None:
        keys["first_k_dense_replace"] = 1
    behind = (Shape("post_mlp_norm", (int(config["hidden_size"]),)),)
    return with_layers(read_deepseek(keys), lambda layer: replace(layer, others=behind))


def read_pangu_ultra(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/openpangu.py): its code comes with the checkpoint."""
    found = read_deepseek({**config, "attention_bias": False, "scoring_func": "sigmoid"})
    corrected = bool(config.get("router_enable_expert_bias", False))
    norms = Norms("rms", found.norm.eps, "both" if config.get("sandwich_norm", False) else "before")

    def changed(layer: Layer) -> Layer:
        part = layer.feed_forward
        part = replace(part, correction=corrected) if isinstance(part, Mixture) else part
        return replace(layer, feed_forward=part, norms=norms)

    return with_layers(found, changed)


# Sarvam 105B: latent attention and experts by Bailing's keys. Mistral Large 3: DeepSeek V3 with a softmax.


def read_mistral_large3(config: dict[str, Any]) -> ModelDescription:
    """Read it by the keys that vLLM makes of its params.json."""
    return read_deepseek({"norm_topk_prob": True, **config, "scoring_func": "softmax"})


def read_sarvam_mla(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does: its code comes with the checkpoint."""
    mixture = bailing_mixture(config, scoring="sigmoid", scale=2.5, correction=True, shared=1)
    first, every = whole(config, "first_k_dense_replace", default=1), whole(config, "moe_layer_freq", default=1)
    sparse = [index >= first and (index - first) % every == 0 for index in range(int(config["num_hidden_layers"]))]
    dense = mlp(config, bias=False)
    return decoder(config, norms(config), latent_attention(config), mixture, sparse, dense=dense)


LIKE_DEEPSEEK = (
    Family(
        (
            *("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"),
            *("GlmMoeDsaForCausalLM", "Glm4MoeLiteForCausalLM"),
        ),
        read_deepseek,
        LATENT_NAMES,
    ),
    Family(("Mistral4ForCausalLM",), read_deepseek, MISTRAL4_NAMES),
    Family(("MistralLarge3ForCausalLM",), read_mistral_large3),
    Family(("SarvamMLAForCausalLM",), read_sarvam_mla),
    Family(("AXK1ForCausalLM",), read_axk1),
    Family(("PanguUltraMoEForCausalLM",), read_pangu_ultra),
    Family(("MiniCPM3ForCausalLM",), read_minicpm3, LATENT_NAMES),
    Family(("YoutuForCausalLM",), read_youtu, LATENT_NAMES),
    Family(("LongcatFlashForCausalLM",), read_longcat),
    Family(("LongcatFlashNgramForCausalLM",), read_longcat_ngram),
)
