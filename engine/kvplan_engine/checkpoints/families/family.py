"""What the engine has to know to run one family of models; each family fills one in, in a file of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError

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
    inside={
        "router": "ffn_gate_inp",
        "experts.up": ("ffn_gate_exps.{}", "ffn_up_exps.{}"),
        "experts.down": "ffn_down_exps.{}",
        "shared.up": ("ffn_gate_shexp", "ffn_up_shexp"),
        "shared.down": "ffn_down_shexp",
        "shared_gate": "ffn_gate_inp_shexp",
    },
)
"""llama.cpp's names for the tensors of a decoder with a gated MLP, or with experts: see ``checkpoints.gguf``."""


@dataclass(frozen=True, slots=True)
class Gguf:
    """How llama.cpp stores the family.

    architecture: ``general.architecture`` of the file. has_experts: one architecture may be with and without.
    pairs_side_by_side: query and key rows that RoPE rotates together are neighbours, where a Hugging Face checkpoint
    has them half a head apart. may_have_attention_bias: some of the files have it, which only their tensors tell.
    norms_as_used: weights that a Hugging Face checkpoint stores minus one are stored as they are. keys: further keys of
    config.json, from the file's metadata below the architecture's name.
    """

    architecture: str
    names: TensorNames = LLAMA_CPP_NAMES
    has_experts: bool = False
    pairs_side_by_side: bool = False
    may_have_attention_bias: bool = False
    norms_as_used: bool = False
    keys: Callable[[dict[str, Any]], dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """Architectures of config.json that are read alike.

    read: the config.json as a ModelDescription; KeyError, TypeError and ValueError mean that it is malformed. Its
    ``architectures`` names one of these, whatever the file says. names: of the tensors in its safetensors checkpoints;
    None for a family that is only described: its capacity can be measured (``load_format="none"``), nothing runs it.
    prefixes: what may stand before all of these names. gguf: None where the engine does not load it from GGUF files.
    """

    architectures: tuple[str, ...]
    read: Callable[[dict[str, Any]], ModelDescription]
    names: TensorNames | None = None
    prefixes: tuple[str, ...] = ("",)
    gguf: Gguf | None = None


def rope_scaling(own: dict[str, Any]) -> dict[str, Any] | None:
    """``rope_scaling`` as config.json has it, from a GGUF file's metadata; None where there is none."""
    kind = own.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise EngineError(f"the file scales RoPE by '{kind}', which the engine does not read from GGUF files.")
    scaling = {"rope_type": kind, "factor": float(own["rope.scaling.factor"])}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = own["rope.scaling.original_context_length"]
    return scaling
