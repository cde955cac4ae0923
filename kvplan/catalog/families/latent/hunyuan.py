"""Hunyuan 4: gated latent attention with sinks, to tokens that every fourth layer chooses; experts; several streams."""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, decoder_body, layer_types, multi_token_layers, stacked
from kvplan.catalog.families.latent.deepseek import (
    LatentSizes,
    decoder_sizes,
    latent_attention,
    latent_rope,
    read_indexer,
    read_latent_sizes,
)
from kvplan.catalog.families.softmax.mixtures import MixtureFamily, after_first_layer, read_feed_forwards
from kvplan.catalog.families.softmax.plain import PlainFamily
from kvplan.catalog.parts import MoeTraits, hyper_connections, hyper_head, norms
from kvplan.catalog.spec import LatentAttention, LayerSpec
from kvplan.catalog.tensors import Tensor

_MIXTURE = MixtureFamily(
    PlainFamily(),
    after_first_layer,
    expert_size=("moe_intermediate_size",),
    shared_count=("n_shared_experts",),
    shared_default=1,
    router_bias=True,
    traits=MoeTraits(shared_name="shared_experts", float32_router=True),
)
_SPARSE = {"indexed_attention", "sparse_attention", "sparse", "deepseek_sparse_attention"}
_DENSE = "full_attention"


def read_hy_v4(view: ConfigView) -> Body:
    """Hunyuan 4 as vLLM reads it: gates, sinks and streams are there unless the config switches them off."""
    sizes, latent = decoder_sizes(view), read_latent_sizes(view)
    if view.flag("attention_bias", default=False):
        raise view.reject("attention_bias", "false (vLLM's class has no biases)")
    kinds = _attention_kinds(view, sizes.layers)
    mixers = {kind: _attention(view, sizes.hidden, latent, kind) for kind in ("full", "shared", _DENSE)}
    streams = view.integer("hc_mult", default=4, maximum=64) if view.flag("enable_ihc", default=True) else 0
    beside = norms(2, sizes.hidden)
    connected = beside + (hyper_connections(sizes.hidden, streams, mixes=False) if streams else ())
    parts = read_feed_forwards(view, _MIXTURE, sizes)
    layers = stacked(sizes, [mixers[kind] for kind in kinds], parts, connected)
    # Layers for multi-token prediction have one stream, and choose for themselves.
    own = LayerSpec(mixers[_DENSE if kinds[-1] == _DENSE else "full"], None, parts[-1], beside)
    body = decoder_body(
        *(view, sizes, layers),
        rotary=False,
        further=hyper_head(sizes.hidden, streams) if streams else (),
        extras=multi_token_layers(view, own, sizes.hidden),
        residual_streams=max(streams, 1),
    )
    return replace(body, rope=latent_rope(view, latent.rope))


def _attention_kinds(view: ConfigView, num_layers: int) -> list[str]:
    """Say of each layer whether it chooses tokens ("full"), takes those of the last that did, or attends to all."""
    types = layer_types(view, num_layers)
    if types is None or set(types) - _SPARSE - {_DENSE}:
        # Without it vLLM attends to all tokens, and transformers to chosen ones.
        raise view.reject("layer_types", "indexed_attention or full_attention for each layer")
    roles = view.texts("indexer_types") or [
        "shared" if index % 4 != 1 and index else "full" for index in range(num_layers)
    ]
    if len(roles) != num_layers or set(roles) - {"full", "shared"}:
        raise view.reject("indexer_types", f"full or shared for each of {num_layers} layers")
    return [_DENSE if kind == _DENSE else role for kind, role in zip(types, roles, strict=True)]


def _attention(view: ConfigView, hidden: int, sizes: LatentSizes, kind: str) -> LatentAttention:
    indexer = read_indexer(view)
    mixer = latent_attention(
        hidden,
        sizes,
        indexer=indexer if kind == "full" else None,
        chosen_tokens=None if kind == _DENSE else indexer.topk,
        gate=_gate_rows(view, sizes),
    )
    if not view.flag("learnable_sink", default=True):
        return mixer
    sinks = Tensor("self_attn.learnable_sink_param", (sizes.heads,), "state", "column")
    return replace(mixer, tensors=(*mixer.tensors, sinks))


def _gate_rows(view: ConfigView, sizes: LatentSizes) -> int:
    if not view.flag("gated_mla", default=True):
        return 0
    kind = view.text("gating_type", default="elementwise")
    rows = {"headwise": sizes.heads, "elementwise": sizes.heads * sizes.value}.get(kind)
    if rows is None:
        raise view.reject("gating_type", "headwise or elementwise")
    return rows
