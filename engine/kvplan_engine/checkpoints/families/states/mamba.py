"""Mamba alone, in layers among attention's (Jamba, Bamba, Granite 4), or beside attention in each (Falcon H1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import Config, attention, decoder, mlp, norms, rope
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.states.parts import (
    mamba1,
    mamba1_names,
    mamba2,
    mamba2_names,
    prefixed_mamba2,
    refuse_other_activations,
    step_limits,
)
from kvplan_engine.checkpoints.fields import head_size
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Attention, State
from kvplan_engine.description.model import ModelDescription, WeightFactor


def read_mamba(config: dict[str, Any]) -> ModelDescription:
    """transformers: MambaModel."""
    return _read(config, _mamba1(config), tied=True)


def read_falcon_mamba(config: dict[str, Any]) -> ModelDescription:
    """transformers: FalconMambaModel, whose inner norms have no weights."""
    eps = float(config.get("mixer_rms_eps") or 1e-6)
    return _read(config, replace(_mamba1(config), plain_norms=True, norm_eps=eps), tied=True)


def _mamba1(config: dict[str, Any]) -> State:
    inner = config.get("intermediate_size")
    return mamba1(config, inner=int(inner) if inner else None)


def read_mamba2(config: dict[str, Any]) -> ModelDescription:
    """transformers: Mamba2Model."""
    refuse_other_activations(config)
    state = mamba2(
        heads=int(config.get("num_heads", 128)),
        head_size=int(config.get("head_dim", 64)),
        columns=int(config.get("state_size", 128)),
        groups=int(config.get("n_groups", 8)),
        kernel=int(config.get("conv_kernel", 4)),
        bias=bool(config.get("use_bias", False)),
        conv_bias=bool(config.get("use_conv_bias", True)),
        step_limits=step_limits(config),
    )
    return _read(config, state, tied=False)


def _read(config: dict[str, Any], state: State, *, tied: bool) -> ModelDescription:
    return decoder(config, norms(config, key="layer_norm_epsilon"), state, None, tied=tied, max_positions=None)


def _names(inside: dict[str, str]) -> TensorNames:
    return TensorNames(
        embedding="backbone.embeddings",
        layer="backbone.layers.{}",
        attention_norm="norm",
        final_norm="backbone.norm_f",
        inside=inside,
    )


# Jamba: one attention without positions in eight layers, Mamba in the others, experts in every other MLP.


def read_jamba(config: dict[str, Any]) -> ModelDescription:
    """transformers: JambaModel."""
    mixer = attention(config, rope=None, qkv_bias=False, output_bias=False)
    state, plain = mamba1(config, "mamba_", norms=True), mlp(config, bias=False)
    mixers = [mixer if full else state for full in _layers_at(config, "attn", 8, 4)]
    experts, sparse = int(config.get("num_experts", 16)), _layers_at(config, "expert", 2, 1)
    mixture = Mixture(experts, int(config.get("num_experts_per_tok", 2)), plain, normalised=False)
    return decoder(
        config, norms(config), mixers, mixture if experts > 1 else plain, sparse, dense=plain, max_positions=262144
    )


def _layers_at(config: dict[str, Any], what: str, period: int, offset: int) -> list[bool]:
    every, first = int(config.get(f"{what}_layer_period", period)), int(config.get(f"{what}_layer_offset", offset))
    return [index % every == first for index in range(int(config["num_hidden_layers"]))]


_JAMBA_NAMES = TensorNames(
    up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    mlp_norm="pre_ff_layernorm",
    final_norm="model.final_layernorm",
    inside={
        **mamba1_names("mamba"),
        "router": "feed_forward.router",
        "experts.up": ("feed_forward.experts.{}.gate_proj", "feed_forward.experts.{}.up_proj"),
        "experts.down": "feed_forward.experts.{}.down_proj",
    },
)

# Hybrids of Mamba 2 and attention, layer by layer: Bamba and Granite 4.


def read_bamba(config: dict[str, Any]) -> ModelDescription:
    """transformers: BambaModel. Half of each head turns by position."""
    state, full = prefixed_mamba2(config), set(config.get("attn_layer_indices") or ())
    mixer = attention(config, rope=rope(config, head_size(config), partial=0.5))
    mixers = [mixer if index in full else state for index in range(int(config["num_hidden_layers"]))]
    return decoder(config, norms(config), mixers, mlp(config), max_positions=262144)


def read_granite_hybrid(config: dict[str, Any]) -> ModelDescription:
    """transformers: GraniteMoeHybridModel. Its scales are Granite's; positions only where the config asks for RoPE."""
    state, mixer = prefixed_mamba2(config), _granite_attention(config)
    kinds = config.get("layer_types") or ["mamba"] * int(config["num_hidden_layers"])
    return decoder(
        config,
        norms(config),
        [mixer if kind in ("attention", "full_attention") else state for kind in kinds],
        _granite_feed_forward(config),
        residual_scale=float(config.get("residual_multiplier", 1.0)),
        embedding_scale=float(config.get("embedding_multiplier", 1.0)),
        logits_scale=1 / float(config.get("logits_scaling", 1.0)),
    )


def _granite_attention(config: dict[str, Any]) -> Attention:
    turns = config.get("position_embedding_type") == "rope"
    return attention(
        config,
        rope=rope(config, head_size(config)) if turns else None,
        scale=float(config.get("attention_multiplier", 1.0)),
    )


def _granite_feed_forward(config: dict[str, Any]) -> FeedForward:
    """The MLP that every token takes, with experts beside it in the larger models."""
    shared = mlp(config, int(config.get("shared_intermediate_size", 1024)), bias=False)
    experts = int(config.get("num_local_experts", 8))
    if not experts:
        return shared
    return Mixture(
        experts,
        int(config.get("num_experts_per_tok", 2)),
        mlp(config, bias=False),
        scoring="softmax_of_top",
        shared=shared,
    )


_BAMBA_NAMES = TensorNames(
    up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    mlp_norm="pre_ff_layernorm",
    final_norm="model.final_layernorm",
    inside=mamba2_names("mamba"),
)
_GRANITE_NAMES = TensorNames(
    up=("shared_mlp.input_linear",),
    down="shared_mlp.output_linear",
    inside={
        **mamba2_names("mamba"),
        "router": "block_sparse_moe.router.layer",
        "experts.up": "block_sparse_moe.input_linear",
        "experts.down": "block_sparse_moe.output_linear",
        "shared.up": "shared_mlp.input_linear",
        "shared.down": "shared_mlp.output_linear",
    },
)

# Falcon H1: Mamba 2 and attention beside each other in every layer, with factors on the inputs and outputs of all.


def read_falcon_h1(config: dict[str, Any]) -> ModelDescription:
    """transformers: FalconH1Model."""
    state = prefixed_mamba2(
        config,
        output_bias=bool(config.get("projectors_bias", False)),
        norms=bool(config.get("mamba_rms_norm", False)),
        norm_first=bool(config.get("mamba_norm_before_gate", True)),
    )
    return decoder(
        config,
        norms(config),
        (attention(config), state),
        mlp(config),
        factors=_factors(config),
        max_positions=8192,
        embedding_scale=_factor(config, "embedding_multiplier"),
        logits_scale=_factor(config, "lm_head_multiplier"),
    )


def _factor(config: Config, key: str) -> float:
    return float(config.get(key) or 1.0)


def _factors(config: Config) -> tuple[WeightFactor, ...]:
    """All that differ from 1. A factor of a product's input does not reach its bias."""
    into, key = _factor(config, "attention_in_multiplier"), _factor(config, "key_multiplier")
    state_into = _factor(config, "ssm_in_multiplier")
    inside = [float(each) for each in config.get("ssm_multipliers") or [1.0] * 5]
    gate, down = (float(each) for each in config.get("mlp_multipliers") or [1.0] * 2)
    out, state_out = _factor(config, "attention_out_multiplier"), _factor(config, "ssm_out_multiplier")
    parts = ("gate", "input", "B", "C", "step")
    factors = (
        WeightFactor("qkv", "query", into, 1.0),
        WeightFactor("qkv", "key", into * key, key),
        WeightFactor("qkv", "value", into, 1.0),
        WeightFactor("output", "", out, out),
        *(WeightFactor("second.in", part, state_into * each, each) for part, each in zip(parts, inside, strict=True)),
        WeightFactor("second.out", "", state_out, state_out),
        WeightFactor("up", "gate", gate, gate),
        WeightFactor("down", "", down, down),
    )
    return tuple(each for each in factors if (each.weight, each.bias) != (1.0, 1.0))


_FALCON_H1_NAMES = replace(_BAMBA_NAMES, inside=mamba2_names("mamba", "second."))

MAMBA = (
    Family(("MambaForCausalLM",), read_mamba, _names(mamba1_names("mixer"))),
    Family(("FalconMambaForCausalLM",), read_falcon_mamba, _names(mamba1_names("mixer"))),
    Family(("Mamba2ForCausalLM",), read_mamba2, _names(mamba2_names("mixer"))),
    Family(("JambaForCausalLM",), read_jamba, _JAMBA_NAMES),
    Family(("BambaForCausalLM",), read_bamba, _BAMBA_NAMES),
    Family(("GraniteMoeHybridForCausalLM",), read_granite_hybrid, _GRANITE_NAMES),
    Family(("FalconH1ForCausalLM",), read_falcon_h1, _FALCON_H1_NAMES),
)
