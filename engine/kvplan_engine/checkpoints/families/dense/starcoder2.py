"""StarCoder 2: LayerNorm, biases everywhere, an MLP without a gate, a sliding window in every layer."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, attention, decoder, mlp, rope, window
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    bias = bool(config.get("use_bias", True))
    norms = Norms("layer", float(config.get("norm_epsilon", 1e-5)))
    kept = window(config.get("sliding_window"))
    own = attention(config, rope=rope(config), kept=kept, qkv_bias=bias, output_bias=bias)
    inner = mlp(config, activation=activation(config.get("hidden_act", "gelu_pytorch_tanh")), gated=False, bias=bias)
    layers = [Layer((own,), inner, norms)] * int(config["num_hidden_layers"])
    return decoder(config, layers, norms, max_positions=4096, tied=True)


STARCODER2 = Family(
    architectures=("Starcoder2ForCausalLM",),
    model_types=("starcoder2",),
    read=_read,
    names=TensorNames(up=("mlp.c_fc",), down="mlp.c_proj"),
)
