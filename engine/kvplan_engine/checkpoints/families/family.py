"""What the engine has to know to run one family of models; each family fills one in, in a file of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvplan_engine.checkpoints.config import ModelConfig
from kvplan_engine.checkpoints.parameters import TensorNames

LLAMA_CPP_NAMES = TensorNames(
    embedding="token_embd",
    layer="blk.{}",
    qkv=("attn_q", "attn_k", "attn_v"),
    output="attn_output",
    up=("ffn_gate", "ffn_up"),
    down="ffn_down",
    attention_norm="attn_norm",
    mlp_norm="ffn_norm",
    query_norm="attn_q_norm",
    key_norm="attn_k_norm",
    final_norm="output_norm",
    head="output",
)
"""llama.cpp's names for the tensors of a decoder with a gated MLP."""


@dataclass(frozen=True, slots=True)
class Gguf:
    """How llama.cpp stores the family.

    architecture: ``general.architecture`` of the file. pairs_side_by_side: query and key rows that RoPE rotates
    together are neighbours, where a Hugging Face checkpoint has them half a head apart. may_have_attention_bias: some
    of the files have it, which only their tensors tell.
    """

    architecture: str
    names: TensorNames = LLAMA_CPP_NAMES
    pairs_side_by_side: bool = False
    may_have_attention_bias: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture of config.json. model_type: what a config without ``architectures`` calls it.

    read_config: the config.json as a ModelConfig; KeyError, TypeError and ValueError mean that it is malformed.
    names: of the tensors in its safetensors checkpoints. prefixes: what may stand before all of these names.
    gguf: None where the engine does not load the family from GGUF files.
    """

    architecture: str
    model_type: str
    read_config: Callable[[dict[str, Any]], ModelConfig]
    names: TensorNames = field(default_factory=TensorNames)
    prefixes: tuple[str, ...] = ("",)
    gguf: Gguf | None = None
