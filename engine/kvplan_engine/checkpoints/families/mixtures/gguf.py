"""Mixtures of experts in GGUF files, whose metadata leaves out what llama.cpp knows by a model's architecture.

Whether chosen weights are normalised (norm_w of build_moe_ffn), and which size an expert has where the file does not
say: src/models/qwen2moe.cpp (623ac8d), qwen3moe.cpp (069be0a) and olmoe.cpp (82234e0) of llama.cpp, 2026.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.family import LLAMA_CPP_NAMES, Gguf, rope_scaling


def _counts(own: dict[str, Any], experts: str) -> dict[str, Any]:
    return {experts: own["expert_count"], "num_experts_per_tok": own["expert_used_count"]}


def _mixtral_keys(own: dict[str, Any]) -> dict[str, Any]:
    size = own.get("expert_feed_forward_length") or own["feed_forward_length"]
    return _counts(own, "num_local_experts") | {"intermediate_size": size}


def _olmoe_keys(own: dict[str, Any]) -> dict[str, Any]:
    return _counts(own, "num_experts") | {"norm_topk_prob": False}


def _expert_size(own: dict[str, Any]) -> int:
    return int(own.get("expert_feed_forward_length") or own["feed_forward_length"] // own["expert_used_count"])


def _qwen2_moe_keys(own: dict[str, Any]) -> dict[str, Any]:
    return _counts(own, "num_experts") | {
        "moe_intermediate_size": _expert_size(own),
        "shared_expert_intermediate_size": own.get("expert_shared_feed_forward_length") or own["feed_forward_length"],
        "norm_topk_prob": False,
    }


def _qwen3_moe_keys(own: dict[str, Any]) -> dict[str, Any]:
    return _counts(own, "num_experts") | {"moe_intermediate_size": _expert_size(own), "norm_topk_prob": True}


def _gpt_oss_keys(own: dict[str, Any]) -> dict[str, Any]:
    """Its published config does not round where YaRN's ramp begins and ends; no metadata says so."""
    keys = _counts(own, "num_local_experts") | {
        "intermediate_size": own["expert_feed_forward_length"],
        "sliding_window": own["attention.sliding_window"],
    }
    scaling = rope_scaling(own)
    return keys | ({} if scaling is None else {"rope_scaling": scaling | {"truncate": False}})


MIXTRAL_GGUF = Gguf("llama", has_experts=True, pairs_side_by_side=True, keys=_mixtral_keys)
QWEN2_MOE_GGUF = Gguf("qwen2moe", has_experts=True, keys=_qwen2_moe_keys)
QWEN3_MOE_GGUF = Gguf("qwen3moe", has_experts=True, keys=_qwen3_moe_keys)
OLMOE_GGUF = Gguf("olmoe", has_experts=True, keys=_olmoe_keys)
_GPT_OSS_NAMES = replace(
    LLAMA_CPP_NAMES,
    mlp_norm="post_attention_norm",
    inside={**LLAMA_CPP_NAMES.inside, "sinks": "attn_sinks.weight"},
)
GPT_OSS_GGUF = Gguf("gpt-oss", _GPT_OSS_NAMES, has_experts=True, may_have_attention_bias=True, keys=_gpt_oss_keys)
