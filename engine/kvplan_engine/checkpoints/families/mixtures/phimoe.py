"""Phi-3.5-MoE: LayerNorm, biases in attention and head, experts chosen by a sparse mixer."""

from __future__ import annotations

from kvplan_engine.checkpoints.families.common import Config, attention, mlp, norms, rope
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import MIXTRAL_NAMES, decoder, whole
from kvplan_engine.checkpoints.fields import head_size, window
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import ModelDescription


def read_phimoe(config: Config) -> ModelDescription:
    """transformers: PhimoeModel."""
    config = {**config, "max_position_embeddings": whole(config, "max_position_embeddings", default=131072)}
    mixture = Mixture(
        whole(config, "num_local_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, bias=False),
        scoring="sparse_mixer",
        normalised=False,
        jitter=float(config.get("router_jitter_noise", 0.01)),
    )
    turns = rope(config, head_size(config), theta=1e6)
    mixer = attention(config, rope=turns, kept=window(config.get("sliding_window")))
    norm = norms({"rms_norm_eps": 1e-5, **config}, "layer")
    bias = bool(config.get("lm_head_bias", False))
    return decoder(config, norm, mixer, mixture, head_bias=bias)


FAMILIES = (Family(("PhimoeForCausalLM", "PhiMoEForCausalLM"), ("phimoe",), read_phimoe, MIXTRAL_NAMES),)
