"""Kimi Linear and Kimi K3: Kimi Delta Attention in three layers of four, latent attention in the fourth; experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import mlp, model, norms
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.latent.parts import LATENT_NAMES, latent_attention
from kvplan_engine.checkpoints.families.mixtures.parts import MIXTRAL_NAMES
from kvplan_engine.checkpoints.families.states.parts import kimi_delta
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import State
from kvplan_engine.description.model import Layer, ModelDescription, Shape


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
        layers.append(Layer((mixer,), _feed_forward(config, index), norm, others=beside))
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


def _feed_forward(config: dict[str, Any], index: int) -> FeedForward:
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


_DELTA = {
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
_NAMES = replace(
    LATENT_NAMES,
    inside={
        **LATENT_NAMES.inside,
        **{ours: f"self_attn.{theirs}" for ours, theirs in _DELTA.items()},
        "conv": tuple(f"self_attn.{part}_conv1d" for part in "qkv"),
        "router": "block_sparse_moe.gate",
        "correction": "block_sparse_moe.gate.e_score_correction_bias",
        "experts.up": MIXTRAL_NAMES.inside["experts.up"],
        "experts.down": MIXTRAL_NAMES.inside["experts.down"],
        "shared.up": tuple(f"block_sparse_moe.shared_experts.{part}_proj" for part in ("gate", "up")),
        "shared.down": "block_sparse_moe.shared_experts.down_proj",
    },
)

FAMILIES = (Family(("KimiLinearForCausalLM",), read_kimi_linear, _NAMES),)
