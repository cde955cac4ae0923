"""StarCoder and SantaCoder: GPT-2 with one KV head for all query heads."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, attention, decoder, mlp
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    hidden, heads = int(config["n_embd"]), int(config["n_head"])
    positions = int(config["n_positions"])
    own = {"hidden_size": hidden, "num_attention_heads": heads, "max_position_embeddings": positions}
    own["num_key_value_heads"] = 1 if config.get("multi_query", True) else heads
    keys = config | own | {"intermediate_size": int(config.get("n_inner") or 4 * hidden)}
    norms = Norms("layer", float(config.get("layer_norm_epsilon", 1e-5)))
    act = activation(config.get("activation_function", "gelu_pytorch_tanh"))
    layer = Layer(
        (attention(keys, rope=None, qkv_bias=True, output_bias=True),),
        mlp(keys, activation=act, gated=False, bias=True),
        norms,
    )
    return decoder(keys, [layer] * int(config["n_layer"]), norms, tied=True, learned_positions=positions)


GPT_BIGCODE = Family(
    architectures=("GPTBigCodeForCausalLM",),
    model_types=("gpt_bigcode",),
    read=_read,
    names=TensorNames(
        embedding="transformer.wte",
        positions="transformer.wpe",
        layer="transformer.h.{}",
        qkv=("attn.c_attn",),
        output="attn.c_proj",
        up=("mlp.c_fc",),
        down="mlp.c_proj",
        attention_norm="ln_1",
        mlp_norm="ln_2",
        final_norm="transformer.ln_f",
        row_order="kv_heads",
    ),
)
