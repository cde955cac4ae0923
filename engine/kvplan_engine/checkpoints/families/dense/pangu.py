"""openPangu Embedded: Llama with biases by keys of its own, in some with norms behind the blocks. It is not run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import decoder, window
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError

_UNKNOWN = ("param_sink_number", "interleaved_sliding_window", "qk_nope_head_dim", "n_routed_experts")


def _read(config: dict[str, Any]) -> ModelDescription:
    """As vLLM reads it (vllm/model_executor/models/openpangu.py): its code comes with the checkpoint."""
    for key in _UNKNOWN:
        if config.get(key):
            raise EngineError(f"the engine does not know what layers of openPangu keep with {key}.")
    bias = bool(config.get("attention_bias") or config.get("bias"))
    kept = window(config.get("sliding_window"))
    layer = llama_layer(config, qkv_bias=bool(config.get("qkv_bias", bias)), output_bias=bias, kept=kept)
    if config.get("sandwich_norm"):
        layer = replace(layer, norms=replace(layer.norms, places="both"))
    return decoder(config, [layer] * int(config["num_hidden_layers"]), layer.norms, max_positions=None)


PANGU = Family(("PanguEmbeddedForCausalLM",), (), _read)
