"""GPT-NeoX and Pythia: attention and MLP side by side behind a norm each, biases, a quarter of each head turns."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, attention, decoder, mlp, rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    parallel = bool(config.get("use_parallel_residual", True))
    norms = Norms("layer", float(config.get("layer_norm_eps", 1e-5)), "parallel_two" if parallel else "before")
    positions = rope(config, theta=float(config.get("rotary_emb_base", 10000)), partial=config.get("rotary_pct", 0.25))
    keys = config | {"num_key_value_heads": None}
    bias = bool(config.get("attention_bias", True))
    own = attention(keys, rope=positions, qkv_bias=bias, output_bias=bias)
    inner = mlp(config, activation=activation(config.get("hidden_act", "gelu")), gated=False, bias=True)
    return decoder(config, [Layer((own,), inner, norms)] * int(config["num_hidden_layers"]), norms)


GPT_NEOX = Family(
    architectures=("GPTNeoXForCausalLM",),
    model_types=("gpt_neox",),
    read=_read,
    names=TensorNames(
        embedding="gpt_neox.embed_in",
        layer="gpt_neox.layers.{}",
        qkv=("attention.query_key_value",),
        output="attention.dense",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        final_norm="gpt_neox.final_layer_norm",
        head="embed_out",
        row_order="kv_heads",
    ),
)
