"""Falcon H1: Mamba 2 and attention beside each other in every layer, with factors on the inputs and outputs of all."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import Config, attention, mlp, model, norms
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.states.parts import mamba2_names, prefixed_mamba2
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import Layer, ModelDescription, WeightFactor


def read_falcon_h1(config: dict[str, Any]) -> ModelDescription:
    """transformers: FalconH1Model."""
    norm = norms(config)
    state = prefixed_mamba2(
        config,
        output_bias=bool(config.get("projectors_bias", False)),
        norms=bool(config.get("mamba_rms_norm", False)),
        norm_first=bool(config.get("mamba_norm_before_gate", True)),
    )
    layer = Layer((attention(config), state), mlp(config), norm, factors=_factors(config))
    return model(
        config,
        [layer] * int(config["num_hidden_layers"]),
        norm,
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


_NAMES = TensorNames(
    up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    mlp_norm="pre_ff_layernorm",
    final_norm="model.final_layernorm",
    inside=mamba2_names("mamba", "second."),
)

FAMILIES = (Family(("FalconH1ForCausalLM",), read_falcon_h1, _NAMES),)
