"""Llama: RoPE, RMSNorm, grouped KV heads, a gated MLP. Most dense families differ from it in a field or two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan_engine.checkpoints.families.family import Family, Gguf
from kvplan_engine.checkpoints.fields import attention, decoder, mlp, rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def llama(config: Mapping[str, Any], *, max_positions: int = 2048, **attention_fields: Any) -> ModelDescription:
    """A model of equal layers, from Llama's keys. attention_fields: what its attention has otherwise.

    max_positions: where the config says nothing, the default of the family's class in transformers.
    """
    layer = llama_layer(config, **attention_fields)
    return decoder(config, [layer] * int(config["num_hidden_layers"]), layer.norms, max_positions=max_positions)


def llama_layer(config: Mapping[str, Any], **attention_fields: Any) -> Layer:
    """One layer of Llama's keys."""
    norms = Norms("rms", float(config.get("rms_norm_eps", 1e-6)))
    feed_forward = mlp(config, bias=bool(config.get("mlp_bias", False)))
    return Layer((llama_attention(config, **attention_fields),), feed_forward, norms)


def llama_attention(config: Mapping[str, Any], **others: Any) -> Attention:
    """Attention of Llama's keys, with biases where ``attention_bias`` says so."""
    bias = bool(config.get("attention_bias", False))
    fields: dict[str, Any] = {"rope": rope(config), "qkv_bias": bias, "output_bias": bias}
    return attention(config, **(fields | others))


LLAMA = Family(
    architectures=(
        *("LlamaForCausalLM", "LLaMAForCausalLM", "AquilaForCausalLM"),
        *("IQuestCoderForCausalLM", "TeleChat3ForCausalLM"),
    ),
    model_types=("llama", "aquila"),
    read=llama,
    names=TensorNames(),
    gguf=Gguf("llama", pairs_side_by_side=True, may_have_attention_bias=True),
)

TELEFLM = Family(("TeleFLMForCausalLM",), (), llama)
"""Llama whose activations have factors that the engine does not know: it is described and not run."""
