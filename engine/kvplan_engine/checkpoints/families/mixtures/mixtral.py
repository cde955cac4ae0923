"""Mixtral, and MiniMax M2, which scores with a sigmoid and turns a part of each head."""

from __future__ import annotations

from kvplan_engine.checkpoints.families.common import Config, attention, mlp, norms, rope
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.gguf import MIXTRAL_GGUF
from kvplan_engine.checkpoints.families.mixtures.parts import MIXTRAL_NAMES, decoder, whole
from kvplan_engine.checkpoints.fields import head_size, window, with_heads_of
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import ModelDescription


def read_mixtral(config: Config) -> ModelDescription:
    """transformers: MixtralModel."""
    mixture = Mixture(whole(config, "num_local_experts"), whole(config, "num_experts_per_tok"), mlp(config, bias=False))
    turns = rope(config, head_size(config), theta=1e6)
    kept = window(config.get("sliding_window"))
    mixer = attention(config, rope=turns, kept=kept, qkv_bias=False, output_bias=False)
    return decoder(config, norms({"rms_norm_eps": 1e-5, **config}), mixer, mixture, max_positions=131072)


def read_minimax_m2(config: Config) -> ModelDescription:
    """transformers: MiniMaxM2Model. The published config says ``rotary_dim``, in elements of a head, and no dtype."""
    mixture = Mixture(
        whole(config, "num_local_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, bias=False),
        scoring="sigmoid",
        correction=True,
    )
    config = with_heads_of(128, config)
    turns = rope(config, head_size(config), rotary_size=config.get("rotary_dim"), theta=5e6)
    head_norm = "all" if config.get("use_qk_norm", True) else "none"
    mixer = attention(config, rope=turns, head_norm=head_norm, qkv_bias=False, output_bias=False)
    named = config.get("dtype") or config.get("torch_dtype")
    stored = config if named or config.get("model_type") != "minimax_m2" else {**config, "dtype": "bfloat16"}
    return decoder(stored, norms(config), mixer, mixture, max_positions=196608)


FAMILIES = (
    Family(("MixtralForCausalLM",), ("mixtral",), read_mixtral, MIXTRAL_NAMES, gguf=MIXTRAL_GGUF),
    Family(("MiniMaxM2ForCausalLM",), ("minimax_m2",), read_minimax_m2, MIXTRAL_NAMES),
)
