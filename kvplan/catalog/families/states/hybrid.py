"""Hybrids of attention and Mamba (Jamba, Bamba, Granite 4, Falcon H1, Zamba 2) or gated short convolutions (LFM2)."""

from __future__ import annotations

from dataclasses import replace

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
from kvplan.catalog.families.states.state import (
    Mamba1Sizes,
    Mamba2Sizes,
    mamba1,
    mamba2,
    read_state_dtype,
    short_convolution,
    time_step_rank,
)
from kvplan.catalog.parts import AttentionTraits, MoeTraits, feed_forward, linear, mixture, norm, norms
from kvplan.catalog.spec import FeedForward, LayerSpec, SoftmaxAttention
from kvplan.catalog.tensors import Tensor

_LFM2_MIXTURE = MixtureFamily(
    PlainFamily(),
    after_dense_ones,
    expert_size=("moe_intermediate_size",),
    router_bias=Flag(("use_expert_bias",), True),
)


def read_jamba(view: ConfigView) -> Body:
    """Jamba: every 8th layer attends, the others are Mamba; every 2nd layer is a mixture; no rotary positions."""
    sizes = read_sizes(view)
    intermediate, num_experts = view.integer("intermediate_size"), view.integer("num_experts", default=1)
    state = mamba1(
        sizes.hidden,
        Mamba1Sizes(
            intermediate=view.integer("mamba_expand", default=2) * sizes.hidden,
            state=view.integer("mamba_d_state", default=16),
            kernel=view.integer("mamba_d_conv", default=4),
            time_step_rank=time_step_rank(view, "mamba_dt_rank", sizes.hidden),
            conv_bias=view.flag("mamba_conv_bias", default=True),
            bias=view.flag("mamba_proj_bias", default=False),
            inner_norms=True,
        ),
        name="mamba",
    )
    dense = feed_forward(sizes.hidden, intermediate, name="feed_forward")
    routed: FeedForward = dense
    if num_experts > 1:
        top_k = view.integer("num_experts_per_tok")
        routed = mixture(sizes.hidden, num_experts, top_k, intermediate, traits=MoeTraits(name="feed_forward"))
    attends = _periodic(view, "attn_layer", sizes.layers, period=8, offset=4)
    is_routed = _periodic(view, "expert_layer", sizes.layers, period=2, offset=1)
    parts = [routed if own else dense for own in is_routed]
    layers = stacked(sizes, [softmax_attention(sizes) if own else state for own in attends], parts)
    return decoder_body(view, sizes, layers, rotary=False)


def _periodic(view: ConfigView, name: str, num_layers: int, *, period: int, offset: int) -> list[bool]:
    every = view.integer(f"{name}_period", default=period)
    first = view.integer(f"{name}_offset", default=offset, minimum=0)
    return [index % every == first for index in range(num_layers)]


def _read_mamba2_sizes(view: ConfigView, hidden: int, *, gated_norm: bool = True) -> Mamba2Sizes:
    """The mamba_* keys that Bamba, Granite 4 and Falcon H1 share."""
    return _mamba2_sizes(
        view,
        view.integer("mamba_d_ssm", default=view.integer("mamba_expand", default=2) * hidden),
        heads=("mamba_n_heads", view.integer("mamba_n_heads")),
        groups=view.integer("mamba_n_groups", default=1),
        conv_bias=view.flag("mamba_conv_bias", default=True),
        bias=view.flag("mamba_proj_bias", default=False),
        gated_norm=gated_norm,
    )


def _mamba2_sizes(
    view: ConfigView,
    inner: int,
    *,
    heads: tuple[str, int],
    groups: int,
    conv_bias: bool,
    bias: bool,
    gated_norm: bool = True,
) -> Mamba2Sizes:
    """Sizes for ``inner`` channels; ``heads``: the key that the number of heads was read from, and that number."""
    if inner % heads[1]:
        raise view.reject(heads[0], f"a divisor of the {inner} inner channels")
    return Mamba2Sizes(
        heads=heads[1],
        head=inner // heads[1],
        state=view.integer("mamba_d_state"),
        groups=groups,
        kernel=view.integer("mamba_d_conv", default=4),
        intermediate=inner,
        conv_bias=conv_bias,
        bias=bias,
        output_bias=bias,
        gated_norm=gated_norm,
    )


def _biased_attention(view: ConfigView, sizes: Sizes) -> SoftmaxAttention:
    bias = view.flag("attention_bias", default=False)
    return softmax_attention(sizes, AttentionTraits.biased(bias, bias))


def read_bamba(view: ConfigView) -> Body:
    """Bamba: the layers in ``attn_layer_indices`` attend, the others are Mamba 2."""
    sizes = read_sizes(view)
    state = mamba2(sizes.hidden, _read_mamba2_sizes(view, sizes.hidden), name="mamba")
    attending = set(view.integers("attn_layer_indices") or [])
    part = feed_forward(sizes.hidden, view.integer("intermediate_size"), name="feed_forward")
    softmax = _biased_attention(view, sizes)
    mixers = [softmax if index in attending else state for index in range(sizes.layers)]
    return decoder_body(view, sizes, stacked(sizes, mixers, [part] * sizes.layers), rotary_share=0.5)


def read_granite_hybrid(view: ConfigView) -> Body:
    """Granite 4: Mamba 2 and attention by ``layer_types``; a shared feed-forward, with experts where there are some."""
    sizes = read_sizes(view)
    state = mamba2(
        sizes.hidden, _read_mamba2_sizes(view, sizes.hidden), state_dtype=read_state_dtype(view), name="mamba"
    )
    softmax = _biased_attention(view, sizes)
    types = view.texts("layer_types") or view.texts("layers_block_type")
    if types is None:
        raise view.reject("layer_types", "mamba or attention for each layer")
    if len(types) != sizes.layers or set(types) - {"mamba", "attention", "linear_attention", "full_attention"}:
        raise view.reject("layer_types", f"mamba or attention for each of {sizes.layers} layers")
    parts = [_granite_feed_forward(view, sizes)] * sizes.layers
    mixers = [softmax if kind in ("attention", "full_attention") else state for kind in types]
    rotary = view.text("position_embedding_type", default="nope") == "rope"
    return decoder_body(view, sizes, stacked(sizes, mixers, parts), rotary=rotary)


def _granite_feed_forward(view: ConfigView, sizes: Sizes) -> FeedForward:
    shared = view.integer("shared_intermediate_size")
    num_experts = view.integer("num_local_experts", default=0, minimum=0)
    if not num_experts:
        return feed_forward(sizes.hidden, shared, name="shared_mlp")
    return mixture(
        sizes.hidden,
        num_experts,
        view.integer("num_experts_per_tok"),
        view.integer("intermediate_size"),
        shared_intermediate=shared,
        traits=MoeTraits(name="block_sparse_moe", shared_name="shared_mlp"),
    )


def read_falcon_h1(view: ConfigView) -> Body:
    """Falcon H1: attention and Mamba 2 side by side in every layer."""
    sizes = read_sizes(view)
    mamba_sizes = _read_mamba2_sizes(view, sizes.hidden, gated_norm=view.flag("mamba_rms_norm", default=False))
    mamba_sizes = replace(mamba_sizes, output_bias=view.flag("projectors_bias", default=False))
    bias = view.flag("mlp_bias", default=False)
    layer = LayerSpec(
        mixer=_biased_attention(view, sizes),
        feed_forward=feed_forward(sizes.hidden, view.integer("intermediate_size"), bias=bias, name="feed_forward"),
        tensors=norms(2, sizes.hidden),
        parallel_state=mamba2(sizes.hidden, mamba_sizes, state_dtype=read_state_dtype(view), name="mamba"),
    )
    return decoder_body(view, sizes, [layer] * sizes.layers)


def read_zamba2(view: ConfigView) -> Body:
    """Zamba 2: Mamba 2 in every layer; some layers also pass through one of a few attention blocks they share.

    The shared blocks' weights stand once, outside the layers; each layer that passes through one has K and V of its
    own there, low-rank adapters of its own, and a projection back. A block is read again at each further pass.
    """
    types = view.texts("layers_block_type")
    if types is None:
        raise view.reject("layers_block_type", "mamba or hybrid for each layer")
    counted = view.changed({"head_dim": None, "num_hidden_layers": len(types)})
    wide = 2 * view.integer("hidden_size")
    head = view.integer("attention_head_dim", default=max(wide // view.integer("num_attention_heads"), 1))
    sizes = read_sizes(counted, head_default=head)
    state = mamba2(sizes.hidden, _zamba2_mamba(view, sizes.hidden), name="mamba")
    rank = view.integer("adapter_rank", default=128)
    block, adapters = _zamba2_block(view, sizes, rank)
    cached = replace(softmax_attention(sizes), tensors=())
    plain = LayerSpec(state, None, None, norms(1, sizes.hidden))
    passing = LayerSpec(
        cached,
        None,
        None,
        norms(1, sizes.hidden) + linear("linear", sizes.hidden, sizes.hidden) + adapters,
        parallel_state=state,
    )
    again, num_blocks = replace(passing, repeats=block), view.integer("num_mem_blocks", default=1, maximum=64)
    passes = iter([passing] * num_blocks)
    layers = [next(passes, again) if kind == "hybrid" else plain for kind in types]
    rotary = view.flag("use_mem_rope", default=False)
    return decoder_body(view, sizes, layers, tied=True, rotary=rotary, further=block * num_blocks)


def _zamba2_mamba(view: ConfigView, hidden: int) -> Mamba2Sizes:
    """Zamba 2's own names for the same sizes."""
    return _mamba2_sizes(
        view,
        view.integer("mamba_expand", default=2) * hidden,
        heads=("n_mamba_heads", view.integer("n_mamba_heads", default=8)),
        groups=view.integer("mamba_ngroups", default=1),
        conv_bias=view.flag("use_conv_bias", default=True),
        bias=view.flag("add_bias_linear", default=False),
    )


def _zamba2_block(view: ConfigView, sizes: Sizes, rank: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A shared block, which sees the layer's input beside the embedding (twice as wide), and a layer's adapters."""
    wide, inner = 2 * sizes.hidden, view.integer("intermediate_size")
    name, width = "shared_transformer.self_attn", sizes.heads * sizes.head
    block: tuple[Tensor, ...] = ()
    for each in ("q_proj", "k_proj", "v_proj"):
        block += linear(f"{name}.{each}", width, wide, "column")
    block += linear(f"{name}.o_proj", sizes.hidden, width, "row")
    block += feed_forward(sizes.hidden, inner, name="shared_transformer.feed_forward").tensors
    block += norm("shared_transformer.input_layernorm", wide)
    block += norm("shared_transformer.pre_ff_layernorm", sizes.hidden)
    adapters = linear("mlp_adapter.0", rank, sizes.hidden) + linear("mlp_adapter.1", 2 * inner, rank, "column")
    if view.flag("use_shared_attention_adapter", default=False):
        for each in ("q", "k", "v"):
            adapters += linear(f"{each}_adapter.0", rank, wide) + linear(f"{each}_adapter.1", wide, rank, "column")
    return block, adapters


def _attending(view: ConfigView, num_layers: int) -> list[bool]:
    types = layer_types(view, num_layers)
    if types is not None:
        return [kind == "full_attention" for kind in types]
    listed = view.integers("full_attn_idxs")
    if listed is None:
        raise view.reject("layer_types", "conv or full_attention for each layer")
    return [index in listed for index in range(num_layers)]


def _intermediate_size(view: ConfigView) -> int:
    """Return the stated size; with ``block_auto_adjust_ff_dim`` two thirds of it, scaled and rounded up."""
    stated = view.integer("block_ff_dim", "intermediate_size")
    if not view.flag("block_auto_adjust_ff_dim", default=True):
        return stated
    size = int(view.number("block_ffn_dim_multiplier", default=1.0) * int(2 * stated / 3))
    multiple = view.integer("block_multiple_of", default=256)
    return -(-size // multiple) * multiple


def _feed_forwards(view: ConfigView, sizes: Sizes) -> list[FeedForward]:
    if view.has("num_experts"):
        return read_feed_forwards(view, _LFM2_MIXTURE, sizes)
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
