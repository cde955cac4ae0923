"""GLM 5.3 Flash: three Kimi Delta Attentions, then latent attention without positions; experts; several streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import mlp, model, norms
from kvplan_engine.checkpoints.families.latent.parts import indexer, latent_attention
from kvplan_engine.checkpoints.families.latent.streams import stream_shapes
from kvplan_engine.checkpoints.families.mixtures.parts import grouped_sigmoid, whole
from kvplan_engine.checkpoints.families.states.parts import kimi_delta
from kvplan_engine.description.feed_forward import FeedForward
from kvplan_engine.description.mixers import LatentAttention, State
from kvplan_engine.description.model import Layer, ModelDescription


def read_glm_next(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does. What mixes the streams only counts."""
    norm, others = norms(config), stream_shapes(config) if config.get("mhc", True) else ()
    state, latent = _state(config), _attention(config)
    dense, mixture = mlp(config, bias=False), grouped_sigmoid(config, shared=1)
    mixture = replace(mixture, correction=config.get("topk_method", "noaux_tc") == "noaux_tc")
    layers = []
    for index in range(int(config["num_hidden_layers"])):
        part: FeedForward = mixture if _is_sparse(config, index) else dense
        layers.append(Layer((state if _is_linear(config, index) else latent,), part, norm, others=others))
    return model(config, layers, norm)


def _is_linear(config: dict[str, Any], index: int) -> bool:
    kinds = config.get("layer_types")
    return index % 4 < 3 if kinds is None else bool(kinds[index] == "linear_attention")


def _is_sparse(config: dict[str, Any], index: int) -> bool:
    kinds = config.get("mlp_layer_types")
    return index > 2 if kinds is None else bool(kinds[index] == "sparse")


def _state(config: dict[str, Any]) -> State:
    older = config.get("linear_attn_config") or {}
    heads, size = older.get("num_heads"), older.get("head_dim")
    kernel = older.get("short_conv_kernel_size") or config.get("linear_conv_kernel_dim", 4)
    return kimi_delta(int(heads or config["linear_num_heads"]), int(size or config["linear_head_dim"]), int(kernel))


def _attention(config: dict[str, Any]) -> LatentAttention:
    index = replace(indexer(config), pool=whole(config, "index_kpool", default=16))
    return latent_attention(config, rope=None, indexer=index, sparse_top_k=int(config["index_topk"]))
