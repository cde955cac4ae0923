"""Qwen3-Next, Qwen3.5 and 3.6, OLMo Hybrid: Gated DeltaNet in three layers of four, attention in the fourth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import QWEN_NAMES, with_names
from kvplan_engine.checkpoints.families.states.parts import gated_delta
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def read_qwen3_next(config: dict[str, Any]) -> ModelDescription:
    """transformers: Qwen3NextModel, Qwen3_5TextModel, Qwen3_5MoeTextModel. Norms' weights are stored minus one."""
    norm = norms(config, "rms_plus_one")
    state, mixer = gated_delta(config), _gated_attention(config)
    kinds = by_period(config, int(config.get("full_attention_interval", 4)), "linear_attention")
    layers = [
        Layer((mixer if kind == "full_attention" else state,), _feed_forward(config, index), norm)
        for index, kind in enumerate(kinds)
    ]
    return model(config, layers, norm, max_positions=32768)


def _gated_attention(config: dict[str, Any]) -> Attention:
    """A quarter of each head turns by position; the query's matrix gives the gate as well."""
    size = int(config.get("head_dim", 256))
    return attention(config, size=size, rope=rope(config, size, partial=0.25), head_norm="head", gate="element")


def _feed_forward(config: dict[str, Any], index: int) -> FeedForward:
    experts = int(config.get("num_experts") or 0)
    every = int(config.get("decoder_sparse_step", 1))
    dense = index in (config.get("mlp_only_layers") or ()) or (index + 1) % every
    if not experts or dense:
        return mlp(config, bias=False)
    return Mixture(
        experts,
        int(config["num_experts_per_tok"]),
        mlp(config, int(config["moe_intermediate_size"]), bias=False),
        normalised=bool(config.get("norm_topk_prob", True)),
        shared=mlp(config, int(config["shared_expert_intermediate_size"]), bias=False),
        shared_gate=True,
    )


def read_olmo_hybrid(config: dict[str, Any]) -> ModelDescription:
    """transformers: OlmoHybridModel. Norms stand behind attention and before DeltaNet."""
    before = norms(config)
    after = Norms(before.kind, before.eps, "after")
    mixer = attention(config, head_norm="all")
    negative = bool(config.get("linear_allow_neg_eigval", True))
    state = replace(gated_delta(_with_linear_heads(config)), norm_eps=1e-5, strength_scale=2.0 if negative else 1.0)
    feed_forward = mlp(config, bias=False)
    layers = [
        Layer((mixer,), feed_forward, after) if kind == "full_attention" else Layer((state,), feed_forward, before)
        for kind in _olmo_kinds(config)
    ]
    return model(config, layers, before, max_positions=65536)


def _olmo_kinds(config: dict[str, Any]) -> list[str]:
    kinds = by_period(config, 4, "linear_attention")
    return kinds if "full_attention" in kinds else [*kinds[:-1], "full_attention"]


def _with_linear_heads(config: dict[str, Any]) -> dict[str, Any]:
    """What the config may leave out: as many heads as attention has, keys of three quarters of the hidden size."""
    heads = int(config["num_attention_heads"])
    key_heads = int(config.get("linear_num_key_heads") or heads)
    key_size = int(config.get("linear_key_head_dim") or int(0.75 * int(config["hidden_size"]) / key_heads))
    return {
        **config,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": int(config.get("linear_num_value_heads") or heads),
        "linear_key_head_dim": key_size,
        "linear_value_head_dim": int(config.get("linear_value_head_dim") or 2 * key_size),
    }


_DELTA: dict[str, str | tuple[str, ...]] = {
    "conv": "linear_attn.conv1d",
    "A_log": "linear_attn.A_log",
    "step_bias": "linear_attn.dt_bias",
    "gated_norm": "linear_attn.norm",
    "out": "linear_attn.out_proj",
}
_MIXTURE: dict[str, str | tuple[str, ...]] = {
    "shared__up": ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    "shared__down": "mlp.shared_expert.down_proj",
    "shared_gate": "mlp.shared_expert_gate",
}
_NEXT_NAMES = with_names(
    QWEN_NAMES,
    **{"in": "linear_attn.in_proj_qkvz", "decay_and_strength": "linear_attn.in_proj_ba"},
    **_DELTA,
    **_MIXTURE,
)
_NAMES = with_names(
    QWEN_NAMES,
    **{"in": ("linear_attn.in_proj_qkv", "", "", "linear_attn.in_proj_z")},
    decay_and_strength=("linear_attn.in_proj_a", "linear_attn.in_proj_b"),
    **_DELTA,
    **_MIXTURE,
)
_OLMO_NAMES = replace(
    QWEN_NAMES,
    by_places={"before": {"attention_norm": "attention_layer_norm", "mlp_norm": "feedforward_layer_norm"}},
    inside=_DELTA
    | {
        "conv": tuple(f"linear_attn.{part}_conv1d" for part in "qkv"),
        "in": tuple(f"linear_attn.{part}_proj" for part in "qkvg"),
        "decay_and_strength": ("linear_attn.a_proj", "linear_attn.b_proj"),
        "gated_norm": "linear_attn.o_norm",
        "out": "linear_attn.o_proj",
    },
)

FAMILIES = (
    Family(("Qwen3NextForCausalLM",), read_qwen3_next, _NEXT_NAMES),
    Family(("Qwen3_5ForCausalLM",), read_qwen3_next, _NAMES),
    Family(("Qwen3_5MoeForCausalLM",), read_qwen3_next, _NAMES),
    Family(("OlmoHybridForCausalLM",), read_olmo_hybrid, _OLMO_NAMES),
)
