"""Gated DeltaNet (Qwen3-Next, Qwen3.5, OLMo Hybrid) and Kimi Delta Attention (Kimi Linear and K3), with attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.latent.parts import LATENT_NAMES, latent_attention
from kvplan_engine.checkpoints.families.mixtures.parts import MIXTRAL_NAMES, QWEN_NAMES, with_names
from kvplan_engine.checkpoints.families.states.parts import gated_delta, gated_mixture, kimi_delta
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Attention, State
from kvplan_engine.description.model import Layer, ModelDescription, Shape
from kvplan_engine.description.norms import Norms

# Qwen3-Next, Qwen3.5 and 3.6, OLMo Hybrid: Gated DeltaNet in three layers of four, attention in the fourth.


def read_qwen3_next(config: dict[str, Any]) -> ModelDescription:
    """transformers: Qwen3NextModel, Qwen3_5TextModel, Qwen3_5MoeTextModel. Norms' weights are stored minus one."""
    norm = norms(config, "rms_plus_one")
    state, mixer = gated_delta(config), _gated_attention(config)
    kinds = by_period(config, int(config.get("full_attention_interval", 4)), "linear_attention")
    layers = [
        Layer((mixer if kind == "full_attention" else state,), _qwen3_next_feed_forward(config, index), norm)
        for index, kind in enumerate(kinds)
    ]
    return model(config, layers, norm, max_positions=32768)


def _gated_attention(config: dict[str, Any]) -> Attention:
    """A quarter of each head turns by position; the query's matrix gives the gate as well."""
    size = int(config.get("head_dim", 256))
    return attention(config, size=size, rope=rope(config, size, partial=0.25), head_norm="head", gate="element")


def _qwen3_next_feed_forward(config: dict[str, Any], index: int) -> FeedForward:
    experts = int(config.get("num_experts") or 0)
    every = int(config.get("decoder_sparse_step", 1))
    dense = index in (config.get("mlp_only_layers") or ()) or (index + 1) % every
    if not experts or dense:
        return mlp(config, bias=False)
    return gated_mixture(config)


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

QWEN3_NEXT = (
    Family(("Qwen3NextForCausalLM",), read_qwen3_next, _NEXT_NAMES),
    Family(("Qwen3_5ForCausalLM",), read_qwen3_next, _QWEN3_NEXT_NAMES),
    Family(("Qwen3_5MoeForCausalLM",), read_qwen3_next, _QWEN3_NEXT_NAMES),
    Family(("OlmoHybridForCausalLM",), read_olmo_hybrid, _OLMO_NAMES),
)


# Kimi Linear and Kimi K3: Kimi Delta Attention in three layers of four, latent attention in the fourth; experts.


def read_kimi_linear(config: dict[str, Any]) -> ModelDescription:
    """The keys of the published config.json, and those that transformers' KimiLinearModel has beside them.

    Kimi K3's further ones: gates of full rank, experts behind a projection, and weighed residuals, which only count.
    """
    norm = norms(config)
    options: dict[str, Any] = {"rope": None} if config.get("mla_use_nope", True) else {}
    if config.get("mla_use_output_gate"):
        options["gate"] = int(config["num_attention_heads"]) * int(config["v_head_dim"])
    state, latent = _state(config), latent_attention(config, **options)
    full, beside = _full_layers(config), _weighed(config, "self_attention", "mlp")
    layers = []
    for index in range(int(config["num_hidden_layers"])):
        mixer = latent if index in full else state
        layers.append(Layer((mixer,), _kimi_linear_feed_forward(config, index), norm, others=beside))
    return model(config, layers, norm, max_positions=1048576, others=_weighed(config, "output_attn"))


def _weighed(config: dict[str, Any], *names: str) -> tuple[Shape, ...]:
    """A norm and one row of scores each, for what earlier blocks left (Kimi K3's attention residuals)."""
    if config.get("attn_res_block_size") is None:
        return ()
    sizes = (int(config["hidden_size"]),)
    return tuple(Shape(f"{name}_res_{part}", sizes) for name in names for part in ("norm", "proj"))


def _full_layers(config: dict[str, Any]) -> set[int]:
    if config.get("layer_types") is not None:
        return {index for index, kind in enumerate(config["layer_types"]) if kind == "full_attention"}
    return {int(index) - 1 for index in _linear(config).get("full_attn_layers") or ()}  # counted from one


def _linear(config: dict[str, Any]) -> dict[str, Any]:
    published = config.get("linear_attn_config")
    if published is not None:
        return dict(published)
    kernel = config.get("linear_conv_kernel_dim", 4)
    return {
        "num_heads": config["linear_num_heads"],
        "head_dim": config["linear_head_dim"],
        "short_conv_kernel_size": kernel,
    }


def _state(config: dict[str, Any]) -> State:
    linear = _linear(config)
    heads, size = int(linear["num_heads"]), int(linear["head_dim"])
    kernel = int(linear.get("short_conv_kernel_size", 4))
    return kimi_delta(heads, size, kernel, full_gate=bool(linear.get("use_full_rank_gate")))


def _is_dense(config: dict[str, Any], index: int) -> bool:
    if config.get("mlp_layer_types") is not None:
        return bool(config["mlp_layer_types"][index] == "dense")
    every = int(config.get("moe_layer_freq", 1))
    return index < int(config.get("first_k_dense_replace", 1)) or index % every > 0


def _kimi_linear_feed_forward(config: dict[str, Any], index: int) -> FeedForward:
    if _is_dense(config, index):
        return mlp(config, bias=False)
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

KIMI_LINEAR = (Family(("KimiLinearForCausalLM",), read_kimi_linear, _KIMI_LINEAR_NAMES),)
