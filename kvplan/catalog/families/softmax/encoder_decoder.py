"""Decoders that attend to an encoder: T5, Whisper, and the text stack of Llama 3.2 Vision."""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import (
    Body,
    read_max_positions,
    read_rope,
    read_sizes,
    read_tied,
    softmax_attention,
)
from kvplan.catalog.families.wrappers.towers import read_towers
from kvplan.catalog.parts import AttentionTraits, attention, feed_forward, norm, norms, outside
from kvplan.catalog.spec import CrossAttention, ExtraModule, LayerSpec, SoftmaxAttention
from kvplan.catalog.tensors import Tensor, count_elements


def cross_attention(own: SoftmaxAttention, encoder_tokens: int | None) -> CrossAttention:
    """A cross attention with the shape and the weights of ``own``."""
    return CrossAttention(
        own.num_heads, own.num_kv_heads, own.head_size_k, own.head_size_v, encoder_tokens, own.tensors
    )


def read_t5(view: ConfigView) -> Body:
    """T5 and its relatives: relative positions in a stack's first layer, UMT5's in all; the encoder counts as well."""
    hidden, inner = view.integer("d_model"), view.integer("d_ff")
    heads, head = view.integer("num_heads"), view.integer("d_kv")
    vocab = view.integer("vocab_size")
    encoder_layers = view.layers("num_layers")
    decoder_layers = view.layers("num_decoder_layers", default=encoder_layers)
    gated = view.text("feed_forward_proj", default="relu").startswith("gated")
    own = attention(hidden, heads, heads, head, traits=AttentionTraits(name="SelfAttention"))
    crossed = attention(hidden, heads, heads, head, traits=AttentionTraits(name="EncDecAttention"))
    part = feed_forward(hidden, inner, gated=gated)
    layer = LayerSpec(own, cross_attention(crossed, None), part, norms(3, hidden))
    buckets = view.integer("relative_attention_num_buckets", default=32)
    encoder_size = encoder_layers * count_elements(own.tensors + part.tensors + norms(2, hidden)) + hidden
    tied = read_tied(view, default=True)
    tensors = outside(hidden, vocab, tied=tied)
    in_each_layer = view.text("model_type", default="") == "umt5"
    tensors += tuple(
        Tensor(f"{stack}.relative_attention_bias", (number if in_each_layer else 1, buckets, heads), "position")
        for stack, number in (("encoder", encoder_layers), ("decoder", decoder_layers))
    )
    tensors += (Tensor("encoder", (encoder_size,), "linear", "ranks"),)
    # Positions are relative: ``n_positions`` is the length of the training data, and limits nothing.
    return Body((layer,) * decoder_layers, tensors, hidden, vocab, tied, None)


def read_whisper(view: ConfigView) -> Body:
    """Whisper: every window of 30 seconds is 1,500 encoder tokens; the audio encoder is counted apart."""
    hidden, vocab = view.integer("d_model"), view.integer("vocab_size")
    layers, heads = view.layers("decoder_layers"), view.integer("decoder_attention_heads")
    if hidden % heads:
        raise view.reject("d_model", f"a multiple of the {heads} heads")
    traits = AttentionTraits(q_bias=True, v_bias=True, output_bias=True)
    own = attention(hidden, heads, heads, hidden // heads, traits=traits)
    crossed = attention(hidden, heads, heads, hidden // heads, traits=replace(traits, name="encoder_attn"))
    part = feed_forward(hidden, view.integer("decoder_ffn_dim"), gated=False, bias=True)
    source = view.integer("max_source_positions", default=1500)
    target = view.integer("max_target_positions", default=448)
    layer = LayerSpec(own, cross_attention(crossed, source), part, norms(3, hidden, bias=True))
    tied = read_tied(view, default=True)
    tensors = outside(hidden, vocab, tied=tied, positions=target, norm_bias=True)
    extras = (_whisper_encoder(view, own, hidden, source),)
    return Body((layer,) * layers, tensors, hidden, vocab, tied, target, extras=extras)


def _whisper_encoder(view: ConfigView, own: SoftmaxAttention, hidden: int, source: int) -> ExtraModule:
    layers, inner = view.layers("encoder_layers"), view.integer("encoder_ffn_dim")
    part = feed_forward(hidden, inner, gated=False, bias=True)
    layer = count_elements(own.tensors + part.tensors + norms(2, hidden, bias=True))
    mel = view.integer("num_mel_bins", default=80)
    convolutions = 3 * mel * hidden + hidden + 3 * hidden * hidden + hidden
    total = layers * layer + convolutions + source * hidden + 2 * hidden
    return ExtraModule("audio encoder", "encoder", total, layers)


def read_mllama(view: ConfigView) -> Body:
    """Llama 3.2 Vision: every fifth layer attends to the picture instead of to the text."""
    text = view.section("text_config") or view
    sizes = read_sizes(text)
    part = feed_forward(sizes.hidden, text.integer("intermediate_size"))
    crossed = softmax_attention(sizes, AttentionTraits(qk_norm="head", name="cross_attn"))
    tokens = _picture_tokens(view)
    gates = tuple(Tensor(f"cross_attn_{name}_gate", (1,), "norm") for name in ("attn", "mlp"))
    plain = LayerSpec(softmax_attention(sizes), None, part, norms(2, sizes.hidden))
    looking = LayerSpec(None, cross_attention(crossed, tokens), part, norms(2, sizes.hidden) + gates)
    indices = text.integers("cross_attention_layers")
    where = set(indices if indices is not None else range(3, sizes.layers, 5))
    tied = read_tied(text, default=False)
    tensors = (
        Tensor("embed_tokens", (sizes.vocab + 8, sizes.hidden), "embedding", "vocab"),
        *norm("norm", sizes.hidden),
        *(() if tied else (Tensor("lm_head", (sizes.vocab, sizes.hidden), "head", "vocab"),)),
    )
    return Body(
        layers=tuple(looking if index in where else plain for index in range(sizes.layers)),
        tensors=tensors,
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab,
        tied=tied,
        max_position_embeddings=read_max_positions(text),
        rope=read_rope(text, sizes.head),
        extras=read_towers(view, sizes.hidden),
    )


def _picture_tokens(view: ConfigView) -> int | None:
    """Encoder tokens of one picture in as many tiles as the model takes; None when the config has no vision part."""
    vision = view.section("vision_config")
    if vision is None:
        return None
    side = vision.integer("image_size", default=448) // vision.integer("patch_size", default=14)
    tiles = vision.integer("max_num_tiles", default=4)
    view.assume(f"A sequence holds one picture of {tiles} tiles.")
    return tiles * (side * side + 1)
