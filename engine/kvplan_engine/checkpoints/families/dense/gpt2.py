"""GPT-2: learned positions, LayerNorm, biases everywhere, an MLP without a gate."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, attention, decoder, mlp
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    hidden, heads = int(config["n_embd"]), int(config["n_head"])
    if hidden % heads:
        raise ValueError(f"n_embd {hidden} is not a multiple of n_head {heads}")
    positions = int(config.get("n_positions") or config["n_ctx"])
    own = {"hidden_size": hidden, "num_attention_heads": heads, "max_position_embeddings": positions}
    keys = config | own | {"intermediate_size": int(config.get("n_inner") or 4 * hidden)}
    norms = Norms("layer", float(config.get("layer_norm_epsilon", 1e-5)))
    feed_forward = mlp(
        keys, activation=activation(config.get("activation_function", "gelu_new")), gated=False, bias=True
    )
    layer = Layer((attention(keys, rope=None, qkv_bias=True, output_bias=True),), feed_forward, norms)
    return decoder(keys, [layer] * int(config["n_layer"]), norms, tied=True, learned_positions=positions)


GPT2 = Family(
    architectures=("GPT2LMHeadModel",),
    model_types=("gpt2",),
    read=_read,
    names=TensorNames(
        embedding="wte",
        positions="wpe",
        layer="h.{}",
        qkv=("attn.c_attn",),
        output="attn.c_proj",
        up=("mlp.c_fc",),
        down="mlp.c_proj",
        attention_norm="ln_1",
        mlp_norm="ln_2",
        final_norm="ln_f",
        transposed=True,
    ),
    prefixes=("", "transformer."),
)
