"""LFM2: gated short convolutions with a few attentions between them."""

from __future__ import annotations

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import (
    Body,
    Sizes,
    decoder_body,
    layer_types,
    read_sizes,
    softmax_attention,
    stacked,
)
from kvplan.catalog.families.softmax.mixtures import MixtureFamily, after_dense_ones, read_feed_forwards
from kvplan.catalog.families.softmax.plain import Flag, PlainFamily
from kvplan.catalog.families.states.state import short_convolution
from kvplan.catalog.parts import AttentionTraits, feed_forward
from kvplan.catalog.spec import FeedForward

_MIXTURE = MixtureFamily(
    PlainFamily(),
    after_dense_ones,
    expert_size=("moe_intermediate_size",),
    router_bias=Flag(("use_expert_bias",), True),
)


def _attending(view: ConfigView, num_layers: int) -> list[bool]:
    types = layer_types(view, num_layers)
    if types is not None:
        return [kind == "full_attention" for kind in types]
    listed = view.integers("full_attn_idxs")
    if listed is None:
        raise view.reject("layer_types", "conv or full_attention for each layer")
    return [index in listed for index in range(num_layers)]


def _intermediate_size(view: ConfigView) -> int:
    """With ``block_auto_adjust_ff_dim`` two thirds of the stated size, scaled and rounded up to a multiple."""
    stated = view.integer("block_ff_dim", "intermediate_size")
    if not view.flag("block_auto_adjust_ff_dim", default=True):
        return stated
    size = int(view.number("block_ffn_dim_multiplier", default=1.0) * int(2 * stated / 3))
    multiple = view.integer("block_multiple_of", default=256)
    return -(-size // multiple) * multiple


def _feed_forwards(view: ConfigView, sizes: Sizes) -> list[FeedForward]:
    if view.has("num_experts"):
        return read_feed_forwards(view, _MIXTURE, sizes)
    return [feed_forward(sizes.hidden, _intermediate_size(view), name="feed_forward")] * sizes.layers


def read_lfm2(view: ConfigView) -> Body:
    """LFM2 and its mixture: ``layer_types`` or ``full_attn_idxs`` say which layers attend."""
    sizes = read_sizes(view)
    softmax = softmax_attention(sizes, AttentionTraits(qk_norm="head"))
    conv = short_convolution(
        sizes.hidden, view.integer("conv_L_cache", default=3), bias=view.flag("conv_bias", default=False)
    )
    mixers = [softmax if attends else conv for attends in _attending(view, sizes.layers)]
    layers = stacked(sizes, mixers, _feed_forwards(view, sizes))
    return decoder_body(view, sizes, layers, tied=view.flag("tie_embedding", default=True))
