"""Nemotron-NAS (DeciLM): a Llama whose layers each have KV heads and an MLP of their own, or none."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms
from kvplan_engine.description.feed_forward import Mlp
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.errors import EngineError


def read_decilm(config: dict[str, Any]) -> ModelDescription:
    """The keys that come with the checkpoint's own code (modeling_decilm.py)."""
    norm = norms(config)
    layers = []
    for block in config["block_configs"]:
        mixer = _attention(config, block["attention"])
        layers.append(Layer((mixer,) if mixer else (), _feed_forward(config, block["ffn"]), norm))
    return model(config, layers, norm)


def _attention(config: dict[str, Any], block: dict[str, Any]) -> Attention | None:
    """``n_heads_in_group`` query heads share a KV head."""
    _refuse_linear(block)
    if block.get("no_op"):
        return None
    heads = int(config["num_attention_heads"])
    return attention(config, num_kv_heads=heads // int(block["n_heads_in_group"]))


def _feed_forward(config: dict[str, Any], block: dict[str, Any]) -> Mlp | None:
    """``ffn_mult`` gives a gated MLP of 2/3 of so many hidden sizes, up to the next multiple of 256."""
    _refuse_linear(block)
    if block.get("no_op"):
        return None
    size = int(2 * float(block["ffn_mult"]) * int(config["hidden_size"]) / 3)
    return mlp(config, -(-size // 256) * 256)


def _refuse_linear(block: dict[str, Any]) -> None:
    if block.get("replace_with_linear"):
        raise EngineError("the engine does not know DeciLM's blocks that are one matrix (replace_with_linear).")
