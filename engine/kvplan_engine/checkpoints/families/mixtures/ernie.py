"""ERNIE 4.5 with experts: RoPE turns neighbours, a correction beside a softmax, biases only where ``use_bias``."""

from __future__ import annotations

from kvplan_engine.checkpoints.families.common import Config, attention, mlp, norms, rope
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import QWEN_NAMES, decoder, shared_mlp, whole, with_names
from kvplan_engine.checkpoints.fields import head_size
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import ModelDescription


def _sparse(config: Config) -> list[bool]:
    """From ``moe_layer_start_index`` to ``moe_layer_end_index`` (-1: the last), every ``moe_layer_interval``-th."""
    number = int(config["num_hidden_layers"])
    first, step = whole(config, "moe_layer_start_index", default=1), whole(config, "moe_layer_interval", default=1)
    end = whole(config, "moe_layer_end_index", default=-1)
    last = number - 1 if end == -1 else end
    return [(index + 1) % step == 0 and first <= index <= last for index in range(number)]


def read_ernie4_5_moe(config: Config) -> ModelDescription:
    """transformers: Ernie4_5_MoeModel."""
    bias = bool(config.get("use_bias", False))
    keys = {**config, "mlp_bias": bias}
    size = whole(config, "moe_intermediate_size", "intermediate_size")
    mixture = Mixture(
        whole(config, "moe_num_experts", "num_experts"),
        whole(config, "moe_k", "num_experts_per_tok"),
        mlp(config, size, bias=False),
        correction=True,
        shared=shared_mlp(keys, size * whole(config, "moe_num_shared_experts", default=2)),
    )
    turns = rope(config, head_size(config), neighbours=True, theta=500000.0)
    mixer = attention(config, rope=turns, qkv_bias=bias, output_bias=bias)
    norm = norms({"rms_norm_eps": 1e-5, **config})
    return decoder(config, norm, mixer, mixture, _sparse(config), dense=mlp(keys), tied=True, max_positions=131072)


FAMILIES = (
    Family(
        ("Ernie4_5_MoeForCausalLM",),
        ("ernie4_5_moe",),
        read_ernie4_5_moe,
        with_names(QWEN_NAMES, correction="mlp.moe_statics.e_score_correction_bias"),
    ),
)
