"""The config.json that a GGUF file was made from, as far as sizes go: each key of its header in the reader's words.

Keys and what each converter writes: ``gguf-py/gguf/constants.py`` and ``conversion/`` of ggml-org/llama.cpp. An
architecture whose header does not say enough is left out of the table of architectures, and refused by name.
"""

from __future__ import annotations

from typing import Any

from kvplan.catalog.architectures import architectures, by_gguf_name
from kvplan.catalog.gguf.families import OWN_KEYS
from kvplan.catalog.gguf.header import GgufHeader
from kvplan.catalog.gguf.metadata import GgufModel, read_model
from kvplan.errors import UnknownArchitectureError

_KEYS = {
    "embedding_length": "hidden_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "feed_forward_length": "intermediate_size",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.sliding_window": "sliding_window",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "leading_dense_block_count": "first_k_dense_replace",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "rope.dimension_count": "rotary_dim",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
"""Metadata below the architecture's name, and the config key that says the same."""

_PER_LAYER = frozenset({"attention.head_count", "attention.head_count_kv", "feed_forward_length"})
_NONE_IS_ZERO = frozenset({"attention.sliding_window", "expert_count", "expert_used_count"})


def gguf_config(header: GgufHeader) -> dict[str, Any]:
    """Return the metadata in the words of a published config. UnknownArchitectureError for one that is not known."""
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in by_gguf_name():
        raise UnknownArchitectureError(
            f"Unknown GGUF architecture '{name}'.",
            hint=f"pass the original model's config.json; docs/models.md lists the {len(by_gguf_name())} known names",
        )
    model = read_model(header, name)
    config: dict[str, Any] = {"architectures": [by_gguf_name()[name].architecture], "torch_dtype": _dtype(header)}
    config |= _shared(model)
    for keys in OWN_KEYS.get(name, ()):
        config |= keys(model, config)
    types = architectures()[config["architectures"][0]].model_types
    config["model_type"] = types[0] if types else None
    return {key: value for key, value in config.items() if value is not None}


def _dtype(header: GgufHeader) -> str:
    """What the weights become when they are unpacked: bfloat16 where some are stored so, else float16."""
    return "bfloat16" if any(tensor.type_name == "BF16" for tensor in header.tensors) else "float16"


def _shared(model: GgufModel) -> dict[str, Any]:
    """What most readers ask for, and what only the tensors say: vocabulary, tied head, biases."""
    config: dict[str, Any] = {
        meant: model.one(key) if key in _PER_LAYER else model.keys.config.get(key) for key, meant in _KEYS.items()
    }
    for key in _NONE_IS_ZERO:
        config[_KEYS[key]] = config[_KEYS[key]] or None
    config["num_hidden_layers"] = model.num_layers
    config["num_nextn_predict_layers"] = model.num_multi_token or None
    config["num_local_experts"] = config["num_experts"]
    if model.keys.has("expert_shared_count"):
        count = model.keys.integer("expert_shared_count", minimum=0)
        config["n_shared_experts"] = config["num_shared_experts"] = count
    if config["head_dim"] is None:
        config["v_head_dim"] = None
        config["head_dim"] = _even_head(model)
    config["rope_scaling"] = _rope_scaling(model)
    embedding = model.shapes.get("token_embd.weight")
    if embedding is not None:
        config["vocab_size"] = embedding[-1]
    config["tie_word_embeddings"] = "output.weight" not in model.shapes
    config["attention_bias"] = model.has("attn_q.bias") or model.has("attn_qkv.bias")
    config["mlp_bias"] = model.has("ffn_up.bias")
    return config


def _even_head(model: GgufModel) -> int | None:
    """The heads' share of the hidden size, which llama.cpp takes where no key says another."""
    heads = model.one("attention.head_count")
    return model.keys.integer("embedding_length") // heads or None if heads else None


def _rope_scaling(model: GgufModel) -> dict[str, Any] | None:
    kind = model.keys.config.get("rope.scaling.type")
    if kind not in ("linear", "yarn"):
        return None
    length = model.keys.optional_integer("rope.scaling.original_context_length")
    scaling = {"rope_type": kind, "factor": model.keys.number("rope.scaling.factor", default=1.0)}
    return scaling if length is None else {**scaling, "original_max_position_embeddings": length}
