"""Hunyuan with experts (Hunyuan-A13B): norms of heads behind RoPE, a shared expert of the experts' size."""

from __future__ import annotations

from dataclasses import replace

from kvplan_engine.checkpoints.families.common import Config, attention, mlp, norms
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import QWEN_NAMES, decoder, with_names
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import ModelDescription


def _same_for_all(config: Config, *keys: str) -> int:
    """A number that configs may give for each layer. ValueError where layers differ."""
    value = next(config[key] for key in keys if config.get(key) is not None)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise ValueError(f"layers differ in their {keys[0]}")
        value = value[0]
    return int(value)


def read_hunyuan_moe(config: Config) -> ModelDescription:
    """transformers: HunYuanMoEV1Model."""
    keys = ("moe_intermediate_size", "intermediate_size")
    size = _same_for_all(config, *keys)
    mixture = Mixture(
        _same_for_all(config, "num_experts"),
        _same_for_all(config, "moe_topk", "num_experts_per_tok"),
        mlp(config, size, bias=False),
        shared=mlp(config, size * _same_for_all({"num_shared_expert": 1, **config}, "num_shared_expert"), bias=False),
    )
    mixer = attention(config, head_norm="head", norm_after_rope=True)
    return decoder(config, norms({"rms_norm_eps": 1e-5, **config}), mixer, mixture)


_NAMES = with_names(
    QWEN_NAMES,
    router="mlp.gate.wg",
    shared__up=("mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"),
    shared__down="mlp.shared_mlp.down_proj",
)

FAMILIES = (
    Family(
        ("HunYuanMoEV1ForCausalLM",),
        ("hunyuan_v1_moe",),
        read_hunyuan_moe,
        replace(_NAMES, query_norm="self_attn.query_layernorm", key_norm="self_attn.key_layernorm"),
    ),
)
