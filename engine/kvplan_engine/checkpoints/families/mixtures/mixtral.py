"""Mixtral, and MiniMax M2, which scores with a sigmoid and turns a part of each head."""

from __future__ import annotations

from kvplan_engine.checkpoints.families.common import Config, attention, mlp, norms, rope
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import MIXTRAL_NAMES, decoder, whole
from kvplan_engine.checkpoints.fields import head_size, window
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import ModelDescription


def read_mixtral(config: Config) -> ModelDescription:
    """transformers: MixtralModel."""
    mixture = Mixture(whole(config, "num_local_experts"), whole(config, "num_experts_per_tok"), mlp(config, bias=False))
    mixer = attention(config, kept=window(config.get("sliding_window")), qkv_bias=False, output_bias=False)
    return decoder(config, norms(config), mixer, mixture, max_positions=131072)


def read_minimax_m2(config: Config) -> ModelDescription:
    """transformers: MiniMaxM2Model. The published config says ``rotary_dim``, in elements of a head, and no dtype."""
    mixture = Mixture(
        whole(config, "num_local_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, bias=False),
        scoring="sigmoid",
        correction=True,
    )
    size = head_size(config)
    turns = rope(config, size, rotary_size=config.get("rotary_dim"), theta=5000000.0)
    head_norm = "all" if config.get("use_qk_norm", True) else "none"
    mixer = attention(config, rope=turns, head_norm=head_norm, qkv_bias=False, output_bias=False)
    named = "dtype" in config or "torch_dtype" in config
    stored = config if named else {**config, "dtype": "bfloat16"}
    return decoder(stored, norms(config), mixer, mixture, max_positions=196608)


FAMILIES = (
    Family(("MixtralForCausalLM",), ("mixtral",), read_mixtral, MIXTRAL_NAMES),
    Family(("MiniMaxM2ForCausalLM",), ("minimax_m2",), read_minimax_m2, MIXTRAL_NAMES),
)
