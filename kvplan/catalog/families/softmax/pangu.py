"""openPangu Pro MoE V2: a mixture behind dense layers, and heads with keys of their own at the start of each text."""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, read_sizes, softmax_attention
from kvplan.catalog.families.softmax import windows
from kvplan.catalog.families.softmax.mixtures import MixtureFamily, after_dense_ones, read_feed_forwards
from kvplan.catalog.families.softmax.plain import Flag, assemble, pangu_family
from kvplan.catalog.parts import FULL, AttentionTraits, Window, norm, sliding
from kvplan.catalog.spec import LayerSpec, RopeSpec, SoftmaxAttention
from kvplan.catalog.tensors import Tensor


def read_pangu_pro(view: ConfigView) -> Body:
    """Read it as vLLM does (vllm/model_executor/models/openpangu.py).

    With ``param_sink_number`` its heads are ``qk_nope_dim`` + ``qk_rope_dim`` and ``v_channels`` wide, and every layer
    keeps all tokens, whatever window it attends to (SinkFullAttentionSpec).
    """
    for key in ("kv_lora_rank", "qk_nope_head_dim"):
        if view.has(key):
            raise view.reject(key, "none (which of two attentions vLLM takes then is not known)")
    plain = pangu_family(view, _interleaved)
    family = MixtureFamily(
        plain,
        after_dense_ones,
        expert_size=("moe_intermediate_size",),
        shared_count=("n_shared_experts",),
        router_bias=Flag(("router_enable_expert_bias",), False),
    )
    sinks = view.integer("param_sink_number", default=0, minimum=0)
    counted = view.changed({"head_dim": view.integer("qk_nope_dim") + view.integer("qk_rope_dim")}) if sinks else view
    sizes = read_sizes(counted)
    parts = read_feed_forwards(view, family, sizes)
    if not sinks:
        return assemble(view, plain, sizes, parts)
    body = assemble(counted, replace(plain, windows=windows.no_window), sizes, parts)
    traits = AttentionTraits.biased(bool(plain.qkv_bias), bool(plain.output_bias))
    mixer = softmax_attention(sizes, traits, head_v=view.integer("v_channels"))
    own = norm("self_attn.k_layernorm", sizes.head) + _sinks(view, mixer, sinks)
    layers = tuple(LayerSpec(mixer, None, each.feed_forward, each.tensors + own) for each in body.layers)
    return replace(body, layers=layers, rope=RopeSpec(10000.0, view.integer("qk_rope_dim")))


def _sinks(view: ConfigView, mixer: SoftmaxAttention, count: int) -> tuple[Tensor, ...]:
    """Keys that every token of every sequence attends to, and values where they are not zeros."""
    sizes = {"key": mixer.head_size_k}
    if view.flag("param_sink_with_value", default=False):
        sizes["value"] = mixer.head_size_v
    return tuple(
        Tensor(f"self_attn.param_sink_{name}", (mixer.num_kv_heads, count * size), "state", "ranks")
        for name, size in sizes.items()
    )


def _interleaved(view: ConfigView, num_layers: int) -> list[Window]:
    """``interleaved_sliding_window``: one window for all layers, or a few in turn; else as every openPangu has them."""
    value = view.config.get("interleaved_sliding_window")
    if value is None:
        return windows.every_layer(view, num_layers)
    if isinstance(value, list):
        turns = view.integers("interleaved_sliding_window", minimum=0) or [0]
    else:
        turns = [view.integer("interleaved_sliding_window", minimum=0)]
    return [sliding(tokens) if tokens else FULL for tokens in (turns[i % len(turns)] for i in range(num_layers))]
