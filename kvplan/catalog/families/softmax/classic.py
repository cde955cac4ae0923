"""Decoders from before Llama: learned or ALiBi positions, layer norms with biases, their own config keys."""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import (
    Body,
    Sizes,
    read_max_positions,
    read_rope,
    read_sizes,
    read_tied,
    softmax_attention,
    stacked,
)
from kvplan.catalog.parts import AttentionTraits, Window, attention, feed_forward, linear, norm, norms, outside, sliding
from kvplan.catalog.spec import LayerSpec, RopeSpec
from kvplan.catalog.tensors import Tensor


def _classic_body(
    view: ConfigView,
    sizes: Sizes,
    intermediate: int,
    *,
    tied: bool,
    attention_bias: bool = True,
    mlp_bias: bool = True,
    num_norms: int = 2,
    norm_bias: bool = True,
    head_bias: bool = False,
    positions: int = 0,
    extra: tuple[Tensor, ...] = (),
    rope: RopeSpec | None = None,
    traits: AttentionTraits | None = None,
    windows: list[Window] | None = None,
) -> Body:
    """What differs between the classic decoders; everything else is as in GPT-2.

    positions: rows of a learned position embedding; 0 without one.
    """
    own = traits or AttentionTraits.biased(attention_bias, attention_bias)
    part = feed_forward(sizes.hidden, intermediate, gated=False, bias=mlp_bias)
    mixers = [softmax_attention(sizes, own, window=window) for window in windows or [Window()] * sizes.layers]
    layers = stacked(sizes, mixers, [part] * sizes.layers, norms(num_norms, sizes.hidden, bias=norm_bias))
    tensors = outside(
        *(sizes.hidden, sizes.vocab), tied=tied, positions=positions, norm_bias=norm_bias, head_bias=head_bias
    )
    return Body(
        layers=tuple(layers),
        tensors=tensors + extra,
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab,
        tied=tied,
        max_position_embeddings=read_max_positions(view),
        rope=rope,
    )


def _read_sizes(view: ConfigView) -> Sizes:
    """Sizes with heads that share the hidden size."""
    return read_sizes(view.changed({"head_dim": None}))


def read_gpt2(view: ConfigView) -> Body:
    """GPT-2: n_embd, n_head, n_layer, learned positions, biases everywhere, head tied to the embedding."""
    sizes = _read_sizes(view)
    inner, positions = view.integer("n_inner", default=4 * sizes.hidden), view.integer("n_positions", "n_ctx")
    return _classic_body(view, sizes, inner, positions=positions, tied=read_tied(view, default=True))


def read_gpt_bigcode(view: ConfigView) -> Body:
    """StarCoder and SantaCoder: GPT-2 with one KV head for all query heads."""
    sizes = _read_sizes(view)
    sizes = replace(sizes, kv_heads=1 if view.flag("multi_query", default=True) else sizes.heads)
    inner, positions = view.integer("n_inner", default=4 * sizes.hidden), view.integer("n_positions")
    return _classic_body(view, sizes, inner, positions=positions, tied=read_tied(view, default=True))


def read_gpt_neo(view: ConfigView) -> Body:
    """GPT-Neo: ``attention_types`` of global and local layers, a window of ``window_size``; no bias in q, k and v."""
    sizes = _read_sizes(view)
    tokens = view.integer("window_size", default=256)
    kinds: list[str] = []
    for entry in view.items("attention_types") or [[["global"], sizes.layers]]:
        if not (
            isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list) and isinstance(entry[1], int)
        ):
            raise view.reject("attention_types", "pairs of a list of kinds and how often it repeats")
        kinds.extend(entry[0] * min(max(entry[1], 0), sizes.layers))
    if len(kinds) != sizes.layers or set(map(str, kinds)) - {"global", "local"}:
        raise view.reject("attention_types", f"global or local for each of {sizes.layers} layers")
    return _classic_body(
        view,
        replace(sizes, kv_heads=sizes.heads),
        view.integer("intermediate_size", default=4 * sizes.hidden),
        positions=view.integer("max_position_embeddings"),
        tied=read_tied(view, default=True),
        traits=AttentionTraits(output_bias=True),
        windows=[sliding(tokens) if kind == "local" else Window() for kind in kinds],
    )


def read_gptj(view: ConfigView) -> Body:
    """GPT-J and CodeGen: rotary positions, attention without and MLP with biases, one norm, a head with bias."""
    sizes = _read_sizes(view)
    return _classic_body(
        view,
        replace(sizes, kv_heads=sizes.heads),
        view.integer("n_inner", default=4 * sizes.hidden),
        attention_bias=False,
        num_norms=1,
        head_bias=True,
        tied=read_tied(view, default=False),
        rope=RopeSpec(10000.0, min(view.integer("rotary_dim", default=64), sizes.head)),
    )


def read_opt(view: ConfigView) -> Body:
    """OPT: learned positions with an offset of two; an embedding that may be narrower than the model."""
    sizes = read_sizes(view)
    width = view.integer("word_embed_proj_dim", default=sizes.hidden)
    bias = view.flag("enable_bias", default=True)
    learned_norms = view.flag("layer_norm_elementwise_affine", default=True)
    norm_first = view.flag("do_layer_norm_before", default=True)
    part = feed_forward(sizes.hidden, view.integer("ffn_dim"), gated=False, bias=bias)
    mixer = attention(sizes.hidden, sizes.heads, sizes.heads, sizes.head, traits=AttentionTraits.biased(bias, bias))
    layer = LayerSpec(mixer, None, part, norms(2, sizes.hidden, bias=True) if learned_norms else ())
    positions = view.integer("max_position_embeddings")
    tied = read_tied(view, default=True)
    tensors: tuple[Tensor, ...] = (
        Tensor("embed_tokens", (sizes.vocab, width), "embedding", "vocab"),
        Tensor("embed_positions", (positions + 2, sizes.hidden), "position"),
    )
    if width != sizes.hidden:
        tensors += linear("project_in", sizes.hidden, width) + linear("project_out", width, sizes.hidden)
    if norm_first and not view.flag("_remove_final_layer_norm", default=False) and learned_norms:
        tensors += norm("final_layer_norm", sizes.hidden, bias=True)
    if not tied:
        tensors += (Tensor("lm_head", (sizes.vocab, width), "head", "vocab"),)
    return Body((layer,) * sizes.layers, tensors, sizes.hidden, sizes.vocab, tied, positions)


def read_bloom(view: ConfigView) -> Body:
    """BLOOM: ALiBi positions, a norm after the embedding."""
    sizes = _read_sizes(view)
    extra = norm("word_embeddings_layernorm", sizes.hidden, bias=True)
    whole = replace(sizes, kv_heads=sizes.heads)
    return _classic_body(view, whole, 4 * sizes.hidden, tied=read_tied(view, default=True), extra=extra)


def read_mpt(view: ConfigView) -> Body:
    """MPT: ALiBi positions, no bias anywhere; grouped heads where ``attn_config`` says so."""
    sizes = _read_sizes(view)
    inner = view.section("attn_config")
    kv_heads = inner.integer("kv_n_heads", default=sizes.heads) if inner is not None else sizes.heads
    if sizes.heads % kv_heads:
        raise view.reject("attn_config", f"KV heads that divide the {sizes.heads} heads")
    return _classic_body(
        view,
        replace(sizes, kv_heads=kv_heads),
        view.integer("expansion_ratio", default=4) * sizes.hidden,
        attention_bias=False,
        mlp_bias=False,
        norm_bias=False,
        tied=True,
    )


def read_falcon(view: ConfigView) -> Body:
    """Falcon 7B (one KV head), 40B and 180B (grouped, ``new_decoder_architecture``)."""
    sizes = _read_sizes(view)
    grouped = view.flag("new_decoder_architecture", default=False)
    parallel = view.flag("parallel_attn", default=True)
    kv_heads = view.integer("num_kv_heads", "n_head_kv", default=sizes.heads)
    if not grouped:
        kv_heads = 1 if view.flag("multi_query", default=True) else sizes.heads
    bias = view.flag("bias", default=False)
    num_norms = view.integer("num_ln_in_parallel_attn", default=2 if grouped else 1, maximum=2)
    if sizes.heads % kv_heads:
        raise view.reject("num_kv_heads", f"a divisor of the {sizes.heads} heads")
    return _classic_body(
        view,
        replace(sizes, kv_heads=kv_heads),
        view.integer("ffn_hidden_size", default=4 * sizes.hidden),
        attention_bias=bias,
        mlp_bias=bias,
        num_norms=num_norms if parallel or grouped else 2,
        tied=read_tied(view, default=True),
        rope=None if view.flag("alibi", default=False) else read_rope(view, sizes.head),
    )
