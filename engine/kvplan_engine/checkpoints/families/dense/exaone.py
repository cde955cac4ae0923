"""EXAONE 3: Llama with names of its own."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    keys = {"num_hidden_layers": config.get("num_layers"), "rms_norm_eps": config.get("layer_norm_epsilon", 1e-5)}
    keys["hidden_act"] = config.get("activation_function", "silu")
    return llama(keys | config)


EXAONE = Family(
    architectures=("ExaoneForCausalLM",),
    model_types=("exaone",),
    read=_read,
    names=TensorNames(
        embedding="transformer.wte",
        layer="transformer.h.{}",
        qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
        output="attn.attention.out_proj",
        up=("mlp.c_fc_0", "mlp.c_fc_1"),
        down="mlp.c_proj",
        attention_norm="ln_1",
        mlp_norm="ln_2",
        final_norm="transformer.ln_f",
    ),
)
