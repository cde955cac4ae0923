"""Gemma 2 and 3 in GGUF files, whose metadata leaves out what llama.cpp knows by a model's size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.family import LLAMA_CPP_NAMES, Gguf

_NAMES = replace(LLAMA_CPP_NAMES, attention_post_norm="post_attention_norm", mlp_post_norm="post_ffw_norm")
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


def _gemma2_keys(own: dict[str, Any]) -> dict[str, Any]:
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    return _keys(own, "gemma2", 4096) | {key: own[key] for key in caps if key in own}


def _gemma3_keys(own: dict[str, Any]) -> dict[str, Any]:
    return _keys(own, "gemma3", 512) | {
        "rope_local_base_freq": float(own.get("rope.freq_base_swa", 10000.0)),
        "rope_theta": float(own.get("rope.freq_base", 1000000.0)),
    }


def _keys(own: dict[str, Any], architecture: str, window: int) -> dict[str, Any]:
    """The 27B models scale scores by the hidden size for each head, all others by a head's size."""
    size = own["attention.key_length"]
    if own["block_count"] == _LAYERS_OF_27B[architecture]:
        size = own["embedding_length"] // own["attention.head_count"]
    return {"query_pre_attn_scalar": size, "sliding_window": own.get("attention.sliding_window", window)}


GEMMA2_GGUF = Gguf("gemma2", _NAMES, norms_as_used=True, keys=_gemma2_keys)
GEMMA3_GGUF = Gguf("gemma3", _NAMES, norms_as_used=True, keys=_gemma3_keys)
