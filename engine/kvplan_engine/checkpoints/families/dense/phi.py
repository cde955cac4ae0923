"""Phi-1, Phi-1.5, Phi-2: attention and MLP side by side behind one LayerNorm, biases everywhere, also on the head."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, attention, decoder, mlp, rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    keys = {"intermediate_size": 4 * int(config["hidden_size"])} | config
    norms = Norms("layer", float(config.get("layer_norm_eps", 1e-5)), "parallel")
    head_norm = "head" if config.get("qk_layernorm") else "none"
    own = attention(keys, rope=rope(keys, partial=0.5), qkv_bias=True, output_bias=True, head_norm=head_norm)
    inner = mlp(keys, activation=activation(config.get("hidden_act", "gelu_new")), gated=False, bias=True)
    layers = [Layer((own,), inner, norms)] * int(config["num_hidden_layers"])
    return decoder(keys, layers, norms, head_bias=True)


PHI = Family(
    architectures=("PhiForCausalLM",),
    model_types=("phi",),
    read=_read,
    names=TensorNames(
        output="self_attn.dense",
        up=("mlp.fc1",),
        down="mlp.fc2",
        query_norm="self_attn.q_layernorm",
        key_norm="self_attn.k_layernorm",
        final_norm="model.final_layernorm",
    ),
)
