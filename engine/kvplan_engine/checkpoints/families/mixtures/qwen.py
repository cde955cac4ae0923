"""Qwen2-MoE (Qwen1.5 and Qwen2) with a shared expert behind a gate, and Qwen3-MoE."""

from __future__ import annotations

from kvplan_engine.checkpoints.families.common import Config, attention, mlp, norms
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.gguf import QWEN2_MOE_GGUF, QWEN3_MOE_GGUF
from kvplan_engine.checkpoints.families.mixtures.parts import (
    QWEN_NAMES,
    decoder,
    late_windows,
    shared_mlp,
    stepped,
    whole,
    with_names,
)
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import ModelDescription


def _mixture(config: Config, shared_size: int) -> Mixture:
    return Mixture(
        whole(config, "num_experts", "num_local_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, whole(config, "moe_intermediate_size", "intermediate_size"), bias=False),
        normalised=bool(config.get("norm_topk_prob", False)),
        shared=shared_mlp(config, shared_size),
        shared_gate=shared_size > 0,
    )


def read_qwen2_moe(config: Config) -> ModelDescription:
    """transformers: Qwen2MoeModel."""
    kept, bias = late_windows(config), bool(config.get("qkv_bias", True))

    def mixer(index: int) -> Attention:
        return attention(config, kept=kept[index], qkv_bias=bias, output_bias=False)

    mixture = _mixture(config, whole(config, "shared_expert_intermediate_size", default=5632))
    return decoder(config, norms(config), mixer, mixture, stepped(config), max_positions=32768)


def read_qwen3_moe(config: Config) -> ModelDescription:
    """transformers: Qwen3MoeModel."""
    kept = late_windows(config)

    def mixer(index: int) -> Attention:
        return attention(config, kept=kept[index], head_norm="head")

    return decoder(config, norms(config), mixer, _mixture(config, 0), stepped(config), max_positions=32768)


_QWEN2_NAMES = with_names(
    QWEN_NAMES,
    shared__up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared__down="mlp.shared_expert.down_proj",
    shared_gate="mlp.shared_expert_gate",
)

FAMILIES = (
    Family(("Qwen2MoeForCausalLM",), ("qwen2_moe",), read_qwen2_moe, _QWEN2_NAMES, gguf=QWEN2_MOE_GGUF),
    Family(("Qwen3MoeForCausalLM",), ("qwen3_moe",), read_qwen3_moe, QWEN_NAMES, gguf=QWEN3_MOE_GGUF),
)
