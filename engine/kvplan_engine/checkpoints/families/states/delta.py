"""Gated DeltaNet (Qwen3-Next, Qwen3.5, OLMo Hybrid) and Kimi Delta Attention (Kimi Linear and K3), with attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import (
    after_dense_ones,
    attention,
    by_period,
    decoder,
    mlp,
    model,
    norms,
    rope,
    stepped,
)
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.latent.parts import LATENT_NAMES, latent_attention
from kvplan_engine.checkpoints.families.mixtures.parts import MIXTRAL_NAMES, QWEN_NAMES, with_names
from kvplan_engine.checkpoints.families.states.parts import gated_delta, gated_mixture, kimi_delta_by_keys, weighed
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms

# Qwen3-Next, Qwen3.5 and 3.6, OLMo Hybrid: Gated DeltaNet in three layers of four, attention in the fourth.


def read_qwen3_next(config: dict[str, Any]) -> ModelDescription:
    """transformers: Qwen3NextModel, Qwen3_5TextModel, Qwen3_5MoeTextModel. Norms' weights are stored minus one."""
    state, mixer, norm = gated_delta(config), _gated_attention(config), norms(config, "rms_plus_one")
    kinds = by_period(config, int(config.get("full_attention_interval", 4)), "linear_attention")
    mixers = [mixer if kind == "full_attention" else state for kind in kinds]
    if not config.get("num_experts"):
        return decoder(config, norm, mixers, mlp(config, bias=False), max_positions=32768)
    return decoder(config, norm, mixers, gated_mixture(config), stepped(config), max_positions=32768)


def _gated_attention(config: dict[str, Any]) -> Attention:
    """A quarter of each head turns by position; the query's matrix gives the gate as well."""
    size = int(config.get("head_dim", 256))
    return attention(config, size=size, rope=rope(config, size, partial=0.25), head_norm="head", gate="element")


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


_QWEN3_NEXT_DELTA: dict[str, str | tuple[str, ...]] = {
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
    **_QWEN3_NEXT_DELTA,
    **_MIXTURE,
)
_QWEN3_NEXT_NAMES = with_names(
    QWEN_NAMES,
    **{"in": ("linear_attn.in_proj_qkv", "", "", "linear_attn.in_proj_z")},
    decay_and_strength=("linear_attn.in_proj_a", "linear_attn.in_proj_b"),
    **_QWEN3_NEXT_DELTA,
    **_MIXTURE,
)
_OLMO_NAMES = replace(
    QWEN_NAMES,
    by_places={"before": {"attention_norm": "attention_layer_norm", "mlp_norm": "feedforward_layer_norm"}},
    inside=_QWEN3_NEXT_DELTA
    | {
        "conv": tuple(f"linear_attn.{part}_conv1d" for part in "qkv"),
        "in": tuple(f"linear_attn.{part}_proj" for part in "qkvg"),
        "decay_and_strength": ("linear_attn.a_proj", "linear_attn.b_proj"),
        "gated_norm": "linear_attn.o_norm",
        "out": "linear_attn.o_proj",
    },
)

# Kimi Linear and Kimi K3: Kimi Delta Attention in three layers of four, latent attention in the fourth; experts.


def read_kimi_linear(config: dict[str, Any]) -> ModelDescription:
    """The keys of the published config.json, and those that transformers' KimiLinearModel has beside them.

    Kimi K3's further ones: gates of full rank, experts behind a projection, and weighed residuals, which only count.
    """
    options: dict[str, Any] = {"rope": None} if config.get("mla_use_nope", True) else {}
    if config.get("mla_use_output_gate"):
        options["gate"] = int(config["num_attention_heads"]) * int(config["v_head_dim"])
    state, latent = kimi_delta_by_keys(config), latent_attention(config, **options)
    full, is_weighed = _full_layers(config), config.get("attn_res_block_size") is not None
    return decoder(
        config,
        norms(config),
        [latent if index in full else state for index in range(int(config["num_hidden_layers"]))],
        _kimi_linear_mixture(config),
        after_dense_ones(config, 1),
        dense=mlp(config, bias=False),
        shapes=weighed(config, "self_attention", "mlp") if is_weighed else (),
        max_positions=1048576,
        others=weighed(config, "output_attn") if is_weighed else (),
    )


def _full_layers(config: dict[str, Any]) -> set[int]:
    if config.get("layer_types") is not None:
        return {index for index, kind in enumerate(config["layer_types"]) if kind == "full_attention"}
    published = config.get("linear_attn_config") or {}
    return {int(index) - 1 for index in published.get("full_attn_layers") or ()}  # counted from one


def _kimi_linear_mixture(config: dict[str, Any]) -> Mixture:
    size, shared = int(config["moe_intermediate_size"]), int(config.get("num_shared_experts") or 0)
    latent = config.get("routed_expert_hidden_size")
    return Mixture(
        int(config.get("num_experts") or config["num_local_experts"]),
        int(config.get("num_experts_per_token") or config["num_experts_per_tok"]),
        mlp(config, size, bias=False),
        scoring="sigmoid",
        normalised=bool(config.get("moe_renormalize", True)),
        scale=float(config.get("routed_scaling_factor", 2.446)),
        correction=True,
        num_groups=int(config.get("num_expert_group") or 1),
        top_groups=int(config.get("topk_group") or 1),
        shared=mlp(config, size * shared, bias=False) if shared else None,
        latent_size=int(latent) if latent else None,
        latent_norm=bool(latent and config.get("latent_moe_use_norm")),
    )


_KIMI_LINEAR_DELTA = {
    "strength": "b_proj",
    "decay_down": "f_a_proj",
    "decay_up": "f_b_proj",
    "gate_down": "g_a_proj",
    "gate_up": "g_b_proj",
    "A_log": "A_log",
    "step_bias": "dt_bias",
    "gated_norm": "o_norm",
    "out": "o_proj",
}
_KIMI_LINEAR_NAMES = replace(
    LATENT_NAMES,
    inside={
        **LATENT_NAMES.inside,
        **{ours: f"self_attn.{theirs}" for ours, theirs in _KIMI_LINEAR_DELTA.items()},
        "conv": tuple(f"self_attn.{part}_conv1d" for part in "qkv"),
        "router": "block_sparse_moe.gate",
        "correction": "block_sparse_moe.gate.e_score_correction_bias",
        "experts.up": MIXTRAL_NAMES.inside["experts.up"],
        "experts.down": MIXTRAL_NAMES.inside["experts.down"],
        "shared.up": tuple(f"block_sparse_moe.shared_experts.{part}_proj" for part in ("gate", "up")),
        "shared.down": "block_sparse_moe.shared_experts.down_proj",
    },
)

DELTA = (
    Family(("Qwen3NextForCausalLM",), read_qwen3_next, _NEXT_NAMES),
    Family(("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"), read_qwen3_next, _QWEN3_NEXT_NAMES),
    Family(("OlmoHybridForCausalLM",), read_olmo_hybrid, _OLMO_NAMES),
    Family(("KimiLinearForCausalLM",), read_kimi_linear, _KIMI_LINEAR_NAMES),
)
