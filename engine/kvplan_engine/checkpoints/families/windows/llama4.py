"""Llama 4: three layers of chunks with RoPE, one that sees everything without; experts in all or half of them."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms, rope
from kvplan_engine.checkpoints.fields import head_size
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import FULL, Attention, Kept
from kvplan_engine.description.model import Layer, ModelDescription


def read_llama4(config: dict[str, Any]) -> ModelDescription:
    """transformers: Llama4TextModel. Its norms of queries and keys have no weights."""
    norm = norms(config)
    number = int(config["num_hidden_layers"])
    has_rope = config.get("no_rope_layers") or [int((index + 1) % 4 != 0) for index in range(number)]
    experts = _expert_layers(config, number)
    dense = mlp(config, int(config.get("intermediate_size_mlp", 16384)), bias=False)
    mixture = _mixture(config)
    layers = [
        Layer((_attention(config, bool(has_rope[index])),), mixture if index in experts else dense, norm)
        for index in range(number)
    ]
    return model(config, layers, norm)


def _expert_layers(config: dict[str, Any], number: int) -> set[int]:
    step = int(config.get("interleave_moe_layer_step", 1))
    named = config.get("moe_layers")
    return set(range(step - 1, number, step)) if named is None else set(named)


def _attention(config: dict[str, Any], has_rope: bool) -> Attention:
    size = head_size(config)
    chunk = config.get("attention_chunk_size", 8192)
    return attention(
        config,
        kept=Kept("chunk", int(chunk)) if has_rope and chunk else FULL,
        rope=rope({"rope_theta": 500000.0, **config}, size, neighbours=True) if has_rope else None,
    )


def _mixture(config: dict[str, Any]) -> Mixture:
    expert = mlp(config, bias=False)
    return Mixture(
        int(config["num_local_experts"]),
        int(config["num_experts_per_tok"]),
        expert,
        scoring="sigmoid",
        normalised=False,
        shared=expert,
    )
