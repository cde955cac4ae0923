"""Mixtures that the engine describes and has not been measured with: Solar Open and Mellum."""

from __future__ import annotations

from kvplan_engine.checkpoints.families.common import Config, attention, mlp, norms, rope, window
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import (
    after_dense_ones,
    decoder,
    grouped_sigmoid,
    whole,
)
from kvplan_engine.checkpoints.fields import head_size, with_heads_of
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import ModelDescription


def read_solar_open(config: Config) -> ModelDescription:
    """transformers: SolarOpenModel. Llama's attention and GLM 4's mixture in every layer."""
    mixer = attention(config, rope=rope(config, head_size(config), theta=1e6), output_bias=False)
    norm = norms({"rms_norm_eps": 1e-5, **config})
    return decoder(config, norm, mixer, grouped_sigmoid(config, shared=1), max_positions=131072)


def read_mellum(config: Config) -> ModelDescription:
    """transformers: MellumModel. Qwen 3's layers, some with a window and positions of their own."""
    config = with_heads_of(128, config)
    kinds = config.get("layer_types") or ["full_attention"] * int(config["num_hidden_layers"])

    def mixer(index: int) -> Attention:
        kind = kinds[index]
        theta = 500000.0 if kind == "full_attention" else 10000.0
        turns = rope(config, head_size(config), kind, theta=theta)
        return attention(config, kept=window(config, kind), head_norm="head", rope=turns)

    mixture = Mixture(
        whole(config, "num_experts", "num_local_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, whole(config, "moe_intermediate_size"), bias=False),
        normalised=bool(config.get("norm_topk_prob", True)),
    )
    return decoder(config, norms(config), mixer, mixture, after_dense_ones(config), max_positions=131072)


DESCRIBED = (
    Family(("SolarOpenForCausalLM",), read_solar_open),
    Family(("MellumForCausalLM",), read_mellum),
)
