"""BLOOM: slopes instead of positions (ALiBi), a norm behind the embedding, biases everywhere."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import attention, decoder, mlp
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    hidden = int(config.get("hidden_size") or config["n_embed"])
    heads = int(config.get("num_attention_heads") or config["n_head"])
    keys = config | {"hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": 4 * hidden}
    keys.pop("num_key_value_heads", None)
    norms = Norms("layer", float(config.get("layer_norm_epsilon", 1e-5)))
    own = attention(keys, rope=None, alibi=True, qkv_bias=True, output_bias=True)
    inner = mlp(keys, activation="gelu_tanh", gated=False, bias=True)
    number = int(config.get("num_hidden_layers") or config["n_layer"])
    positions = int(config.get("seq_length") or 2048)
    layers = [Layer((own,), inner, norms)] * number
    return decoder(keys, layers, norms, max_positions=positions, tied=True, embedding_norm=True)


BLOOM = Family(
    architectures=("BloomForCausalLM",),
    model_types=("bloom",),
    read=_read,
    names=TensorNames(
        embedding="word_embeddings",
        embedding_norm="word_embeddings_layernorm",
        layer="h.{}",
        qkv=("self_attention.query_key_value",),
        output="self_attention.dense",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        final_norm="ln_f",
        row_order="kv_heads",
    ),
    prefixes=("", "transformer."),
)
