"""OPT: learned positions behind two unused rows, LayerNorm, biases everywhere, ReLU without a gate."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, attention, decoder, mlp
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms
from kvplan_engine.errors import EngineError

_OFFSET = 2
"""Rows of the table of positions before that of position 0."""


def _read(config: dict[str, Any]) -> ModelDescription:
    hidden = config["hidden_size"]
    bias, is_learned = bool(config.get("enable_bias", True)), config.get("layer_norm_elementwise_affine", True)
    if not config.get("do_layer_norm_before", True) or config.get("word_embed_proj_dim", hidden) != hidden:
        raise EngineError("the engine does not know OPT with norms on the residual stream or a narrow embedding.")
    keys = config | {"intermediate_size": int(config["ffn_dim"]), "num_key_value_heads": None}
    norms = Norms("layer" if is_learned else "none", 1e-5)
    act = activation(config.get("activation_function", "relu"))
    own = attention(keys, rope=None, qkv_bias=bias, output_bias=bias)
    layer = Layer((own,), mlp(keys, activation=act, gated=False, bias=bias), norms)
    return decoder(
        keys,
        [layer] * int(config["num_hidden_layers"]),
        norms,
        tied=True,
        learned_positions=int(config["max_position_embeddings"]) + _OFFSET,
        position_offset=_OFFSET,
    )


OPT = Family(
    architectures=("OPTForCausalLM",),
    model_types=("opt",),
    read=_read,
    names=TensorNames(
        embedding="decoder.embed_tokens",
        positions="decoder.embed_positions",
        layer="decoder.layers.{}",
        output="self_attn.out_proj",
        up=("fc1",),
        down="fc2",
        attention_norm="self_attn_layer_norm",
        mlp_norm="final_layer_norm",
        final_norm="decoder.final_layer_norm",
        head="lm_head",
    ),
    prefixes=("model.", ""),
)
