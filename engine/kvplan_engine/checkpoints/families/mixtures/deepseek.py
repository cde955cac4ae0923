"""DeepSeek-MoE 16B, Bailing (Ling), Sarvam 30B and Param 2, whose code lives beside their checkpoints."""

from __future__ import annotations

from dataclasses import replace

from kvplan_engine.checkpoints.families.common import Config, attention, mlp, norms, rope
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import (
    QWEN_NAMES,
    after_dense_ones,
    bailing_mixture,
    decoder,
    shared_mlp,
    whole,
    with_names,
)
from kvplan_engine.checkpoints.fields import head_size
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError


def read_deepseek_moe(config: Config) -> ModelDescription:
    """modeling_deepseek.py of deepseek-ai/deepseek-moe-16b-base."""
    size = int(config["moe_intermediate_size"])
    mixture = Mixture(
        whole(config, "n_routed_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, size, bias=False),
        normalised=bool(config.get("norm_topk_prob", False)),
        shared=shared_mlp({**config, "mlp_bias": False}, size * whole(config, "n_shared_experts", default=0)),
    )
    dense = mlp(config, bias=False)
    return decoder(config, norms(config), attention(config), mixture, after_dense_ones(config), dense=dense)


def read_bailing_moe(config: Config) -> ModelDescription:
    """modeling_bailing_moe.py and modeling_bailing_moe_v2.py of inclusionAI's Ling and Ring."""
    if config.get("norm_head") or config.get("norm_softmax"):
        raise EngineError("the engine does not normalise the rows of Bailing's head (norm_head, norm_softmax).")
    bias = bool(config.get("use_bias", False))
    mixer = attention(
        config,
        rope=rope(config, head_size(config)),
        qkv_bias=bool(config.get("use_qkv_bias", bias)),
        output_bias=bias,
        head_norm="head" if config.get("use_qk_norm", False) else "none",
    )
    dense = mlp(config, bias=bias)
    mixture = bailing_mixture(config)
    return decoder(config, norms(config), mixer, mixture, after_dense_ones(config), dense=dense, max_positions=32768)


def read_param2(config: Config) -> ModelDescription:
    """Param 2, as vLLM reads it: the size of the shared experts is that of all together."""
    keys = {
        "first_k_dense_replace": 1,
        "num_shared_experts": 1,
        "moe_router_enable_expert_bias": True,
        "score_function": "sigmoid",
        "use_qkv_bias": False,
        **config,
    }
    if config.get("moe_shared_expert_intermediate_size") is not None:
        keys["num_shared_experts"] = 1
    return read_bailing_moe(keys)


_BAILING_NAMES = replace(
    with_names(QWEN_NAMES, correction="mlp.gate.expert_bias"),
    embedding="model.word_embeddings",
    qkv=("attention.query_key_value",),
    output="attention.dense",
    query_norm="attention.query_layernorm",
    key_norm="attention.key_layernorm",
)

FAMILIES = (
    Family(("DeepseekForCausalLM",), ("deepseek",), read_deepseek_moe, QWEN_NAMES),
    Family(
        ("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"),
        ("bailing_moe", "bailing_moe_v2"),
        read_bailing_moe,
        _BAILING_NAMES,
    ),
    Family(("SarvamMoEForCausalLM",), ("sarvam_moe",), read_bailing_moe),
    Family(("Param2MoEForCausalLM",), (), read_param2),
)
