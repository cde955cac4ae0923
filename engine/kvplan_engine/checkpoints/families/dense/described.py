"""Decoders of attention and an MLP that the engine describes and does not run: TeleChat 2 and Step 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import LlamaLike, llama
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.description.model import ModelDescription, Shape
from kvplan_engine.errors import EngineError

_TELECHAT_KEYS = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "ffn_hidden_size",
    "max_position_embeddings": "seq_length",
}


def read_telechat2(config: Mapping[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/telechat2.py): the last matrix of each block has a bias."""
    if config.get("embed_layernorm"):
        raise EngineError("the engine does not know TeleChat's norm behind the embedding (embed_layernorm).")
    named = {ours: config[theirs] for ours, theirs in _TELECHAT_KEYS.items() if config.get(theirs) is not None}
    keys = {**named, **{key: value for key, value in config.items() if value is not None}}
    attention = {"qkv_bias": False, "output_bias": True}
    like = LlamaLike(attention=attention, mlp={"bias": False}, max_positions=None, model={"tied": True})
    found = like(keys)
    layer = replace(found.layers[0], others=(Shape("mlp.down.bias", (found.hidden_size,)),))
    return replace(found, layers=(layer,) * found.num_layers)


def read_step1(config: Mapping[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/step1.py): slopes in place of positions, groups of heads."""
    groups = config.get("num_attention_groups") or config.get("num_key_value_heads") or 1
    keys = {"tie_word_embeddings": True, **config, "num_key_value_heads": groups, "head_dim": None}
    keys["max_position_embeddings"] = config.get("max_position_embeddings") or config.get("max_seq_len")
    return replace(llama(keys, rope=None, alibi=True), max_position_embeddings=keys["max_position_embeddings"])


DESCRIBED = (
    Family(("TeleChat2ForCausalLM",), read_telechat2),
    Family(("Step1ForCausalLM",), read_step1),
)
