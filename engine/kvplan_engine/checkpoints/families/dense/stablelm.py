"""StableLM: Llama with LayerNorm, a quarter of each head turning; the 12B has norms of heads and parallel blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import decoder, rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    parallel = bool(config.get("use_parallel_residual", False))
    norms = Norms("layer", float(config.get("layer_norm_eps", 1e-5)), "parallel" if parallel else "before")
    layer = llama_layer(
        config,
        rope=rope(config, partial=float(config.get("rope_pct", 0.25))),
        qkv_bias=bool(config.get("use_qkv_bias", False)),
        output_bias=False,
        head_norm="per_head" if config.get("qk_layernorm") else "none",
        head_norm_kind="layer_no_bias",
    )
    layers = [replace(layer, norms=norms)] * int(config["num_hidden_layers"])
    return decoder(config, layers, norms, max_positions=4096)


STABLELM = Family(
    architectures=("StableLmForCausalLM",),
    model_types=("stablelm",),
    read=_read,
    names=TensorNames(query_norm="self_attn.q_layernorm.norms.{}", key_norm="self_attn.k_layernorm.norms.{}"),
)
