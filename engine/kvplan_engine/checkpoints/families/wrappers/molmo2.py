"""Molmo 2's language model: Qwen 3 or OLMo by its keys. It is described and not run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama
from kvplan_engine.checkpoints.families.wrappers.multimodal import text_of
from kvplan_engine.description.model import ModelDescription, Shape

_NORMS = {"qwen3": "head", "olmo": "full"}


def read_molmo2(config: dict[str, Any]) -> ModelDescription:
    """As vLLM reads it (vllm/model_executor/models/molmo2.py), whose embedding has rows that the head lacks."""
    text = {**text_of(config), "architectures": config["architectures"], "tie_word_embeddings": False}
    kind = _NORMS[text.get("qk_norm_type", "qwen3")] if text.get("use_qk_norm", True) else "none"
    bias = bool(text.get("qkv_bias", text.get("attention_bias", False)))
    found = llama({**text, "mlp_bias": False}, qkv_bias=bias, output_bias=False, head_norm=kind)
    more = int(text.get("additional_vocab_size", 128))
    return replace(found, others=(Shape("model.new_embedding", (more, found.hidden_size)),) if more else ())
