"""Hunyuan 4: gated latent attention with sinks, to tokens that an index chose; experts; several residual streams."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import mlp, model, norms
from kvplan_engine.checkpoints.families.latent.parts import indexer, latent_attention
from kvplan_engine.checkpoints.families.latent.streams import head_shapes, stream_shapes
from kvplan_engine.checkpoints.families.mixtures.parts import grouped_sigmoid
from kvplan_engine.description.feed_forward import FeedForward
from kvplan_engine.description.mixers import LatentAttention
from kvplan_engine.description.model import Layer, ModelDescription, Shape


def read_hunyuan4(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does. What gates the streams, and the sinks, only count."""
    norm, streams = norms(config), bool(config.get("enable_ihc", True))
    others = stream_shapes(config, mixes=False) if streams else ()
    if config.get("learnable_sink", True):
        others += (Shape("sinks", (int(config["num_attention_heads"]),)),)
    mixture, dense = grouped_sigmoid(config, shared=1), mlp(config, bias=False)
    layers = []
    for index, kind in enumerate(config["layer_types"]):
        mixer = _attention(config, chooses=_chooses(config, index), attends_to_all=kind == "full_attention")
        part: FeedForward = mixture if _is_sparse(config, index) else dense
        layers.append(Layer((mixer,), part, norm, others=others))
    return model(config, layers, norm, others=head_shapes(config) if streams else ())


def _attention(config: dict[str, Any], *, chooses: bool, attends_to_all: bool) -> LatentAttention:
    if attends_to_all:
        return latent_attention(config, gate=_gate(config))
    index = indexer(config) if chooses else None
    return latent_attention(config, gate=_gate(config), indexer=index, sparse_top_k=int(config["index_topk"]))


def _gate(config: dict[str, Any]) -> int:
    if not config.get("gated_mla", True):
        return 0
    heads = int(config["num_attention_heads"])
    return heads if config.get("gating_type") == "headwise" else heads * int(config["v_head_dim"])


def _chooses(config: dict[str, Any], index: int) -> bool:
    kinds = config.get("indexer_types")
    return index in (0, 1) or index % 4 == 1 if kinds is None else bool(kinds[index] == "full")


def _is_sparse(config: dict[str, Any], index: int) -> bool:
    kinds = config.get("mlp_layer_types")
    return index > 0 if kinds is None else bool(kinds[index] == "sparse")
