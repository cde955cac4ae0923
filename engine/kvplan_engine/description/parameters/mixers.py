"""Attention's parameters: one matrix for queries, keys and values, because one product is faster than three."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from kvplan_engine.description.mixers import (
    Attention,
    CompressedAttention,
    CrossAttention,
    Indexer,
    LatentAttention,
    State,
)
from kvplan_engine.description.norms import NormKind
from kvplan_engine.description.parameters.parameter import Parameter, Rows, norm, projection


def attention_parameters(attention: Attention, hidden_size: int, norm_kind: NormKind) -> Iterator[Parameter]:
    """Yield the parameters of one layer. norm_kind: the layer's, for norms of heads that name no kind of their own."""
    if attention.shared_weights:
        return
    heads = attention.num_kv_heads
    yield from projection(
        "qkv", _rows(attention), hidden_size, bias=attention.qkv_bias, split="outputs", kv_heads=heads
    )
    if attention.query_rank is not None:
        yield from _query_through_latent(attention, attention.query_rank, hidden_size)
    yield from projection("output", hidden_size, attention.output_size, bias=attention.output_bias, split="inputs")
    if attention.gate in ("element", "separate"):
        bias = attention.qkv_bias and attention.gate == "element"
        yield from projection("gate", attention.output_size, hidden_size, bias=bias, split="outputs")
    elif attention.gate == "head":
        yield from projection("gate", attention.num_heads, hidden_size, split="outputs")
    kind = attention.head_norm_kind or norm_kind
    if attention.head_norm != "none":
        yield from _head_norm("query_norm", attention, kind, attention.num_heads)
        if attention.reads_layer is None:
            yield from _head_norm("key_norm", attention, kind, attention.num_kv_heads, kv_heads=heads)
    if attention.sinks:
        yield Parameter("sinks", (attention.num_heads,), "bias", "", split="outputs")
    if attention.indexer is not None:
        if attention.indexer.key_dtype == "float8_e4m3fn":
            yield from _region_parameters(attention, attention.indexer, hidden_size, kind)
        else:
            yield from _indexer_parameters(attention.indexer, hidden_size, kind)


def _indexer_parameters(indexer: Indexer, hidden_size: int, norm_kind: NormKind) -> Iterator[Parameter]:
    """MiniMax M3's: small queries and one small key from the layer's input, both normalised."""
    rows: Rows = (("query", indexer.num_heads * indexer.head_size), ("key", indexer.head_size))
    yield from projection("indexer.qk", rows, hidden_size)
    yield from norm("indexer.query_norm", norm_kind, indexer.head_size)
    yield from norm("indexer.key_norm", norm_kind, indexer.head_size)


def _region_parameters(
    attention: Attention, indexer: Indexer, hidden_size: int, norm_kind: NormKind
) -> Iterator[Parameter]:
    """Step 5's: a gate beside each key, weights of the queries; a scale of each head that is stored and not used."""
    size, queries = indexer.head_size, indexer.num_heads * indexer.head_size
    rows: Rows = (("query", queries), ("key", size), ("gate", size), ("weights", indexer.num_heads))
    yield from projection("indexer.qkzw", rows, hidden_size)
    yield from norm("indexer.query_norm", norm_kind, size)
    yield from norm("indexer.key_norm", "layer", size)
    yield Parameter("indexer.unused_scale", (attention.num_heads,), "other", "")


def _query_through_latent(attention: Attention, rank: int, hidden_size: int) -> Iterator[Parameter]:
    yield from projection("query_down", rank, hidden_size)
    yield from norm("query_latent_norm", "rms", rank)
    yield from projection("query_up", attention.query_size, rank, split="outputs")


def _rows(attention: Attention) -> Rows:
    rows: Rows = () if attention.query_rank is not None else (("query", attention.query_size),)
    if attention.reads_layer is None:
        rows += (("key", attention.num_kv_heads * attention.key_size),)
        if not attention.value_is_key:
            rows += (("value", attention.num_kv_heads * attention.value_size),)
    return rows


def _head_norm(
    part: str, attention: Attention, kind: NormKind, num_heads: int, kv_heads: int = 0
) -> Iterator[Parameter]:
    """One weight for all heads, or a row for each."""
    size = attention.key_size
    if attention.head_norm == "head":
        yield from norm(part, kind, size)
        return
    for parameter in norm(part, kind, num_heads * size):
        rows = tuple((f"head {head}", size) for head in range(num_heads))
        yield replace(parameter, rows=rows, split="heads", kv_heads=kv_heads)


# The parameters of attention over an encoder's outputs.


def cross_parameters(attention: CrossAttention, hidden_size: int) -> Iterator[Parameter]:
    """Yield the parameters of one layer. The encoder's outputs are as wide as the decoder's hidden state.

    bias: of queries, values and the output; keys have none (Whisper).
    """
    key_size = attention.num_kv_heads * attention.key_size
    value_size = attention.num_kv_heads * attention.value_size
    yield from projection("query", attention.num_heads * attention.key_size, hidden_size, bias=attention.bias)
    yield from projection("key", key_size, hidden_size)
    yield from projection("value", value_size, hidden_size, bias=attention.bias)
    yield from projection("output", hidden_size, attention.num_heads * attention.value_size, bias=attention.bias)
    if attention.head_norm:
        yield from norm("query_norm", "rms", attention.key_size)
        yield from norm("key_norm", "rms", attention.key_size)


# The parameters of latent and of compressed attention, and of the index that either may have.


def latent_parameters(attention: LatentAttention, hidden_size: int) -> Iterator[Parameter]:
    """Parameters of one layer: queries through a latent of their own or directly, keys and values by the kept one."""
    query_size = attention.num_heads * (attention.nope_size + attention.rope_size)
    if attention.q_rank is None:
        yield from projection("query", query_size, hidden_size)
    else:
        yield from projection("query_down", attention.q_rank, hidden_size, bias=attention.bias)
        yield from norm("query_latent_norm", "rms", attention.q_rank)
        yield from projection("query_up", query_size, attention.q_rank)
    kept = (("latent", attention.kv_rank), ("rope_key", attention.rope_size))
    yield from projection("kv_down", kept, hidden_size, bias=attention.bias)
    yield from norm("kv_latent_norm", "rms", attention.kv_rank)
    per_head = attention.nope_size + attention.value_size
    yield from projection("kv_up", attention.num_heads * per_head, attention.kv_rank)
    yield from projection("output", hidden_size, attention.num_heads * attention.value_size, bias=attention.bias)
    if attention.gate:
        yield from projection("gate", attention.gate, hidden_size)
    if attention.indexer is not None:
        yield from _latent_indexer(attention.indexer, attention.q_rank or hidden_size, hidden_size)


def _latent_indexer(indexer: Indexer, query_inputs: int, hidden_size: int) -> Iterator[Parameter]:
    """DeepSeek V3.2's: queries from the query's latent, one key with a LayerNorm, a weight of each head."""
    yield from projection("indexer.query", indexer.num_heads * indexer.head_size, query_inputs)
    yield from projection("indexer.key", indexer.head_size, hidden_size)
    yield from norm("indexer.key_norm", "layer", indexer.head_size)
    yield from projection("indexer.head_weights", indexer.num_heads, hidden_size)
    if indexer.pool > 1:
        yield from projection("indexer.pool_gate", indexer.head_size, hidden_size)
        yield Parameter("indexer.pool_positions", (indexer.pool, indexer.head_size), "bias", "")


def compressed_parameters(attention: CompressedAttention, hidden_size: int) -> Iterator[Parameter]:
    """Parameters of a DeepSeek V4 layer: one vector per token is key and value; the output is projected in groups."""
    size = attention.num_heads * attention.head_size
    yield from projection("query_down", attention.q_rank, hidden_size)
    yield from norm("query_latent_norm", "rms", attention.q_rank)
    yield from projection("query_up", size, attention.q_rank)
    yield from projection("kv", attention.head_size, hidden_size)
    yield from norm("kv_norm", "rms", attention.head_size)
    inner = attention.output_groups * attention.output_rank
    yield from projection("output_down", inner, size // attention.output_groups)
    yield from projection("output_up", hidden_size, inner)
    yield Parameter("sinks", (attention.num_heads,), "bias", "")
    if attention.ratio is None or attention.is_shared:
        return
    overlaps = attention.indexer is not None
    yield from _compressor("compressor", attention.head_size, attention.ratio, hidden_size, overlaps=overlaps)
    if attention.indexer is not None:
        index = attention.indexer
        yield from _compressor("indexer", index.head_size, attention.ratio, hidden_size, overlaps=True)
        yield from projection("indexer.query", index.num_heads * index.head_size, attention.q_rank)
        yield from projection("indexer.head_weights", index.num_heads, hidden_size)


def _compressor(part: str, size: int, ratio: int, hidden_size: int, *, overlaps: bool) -> Iterator[Parameter]:
    """What makes one vector of ``ratio`` tokens. overlaps: runs reach into the next, with a second half for that."""
    width = size * (2 if overlaps else 1)
    yield from projection(f"{part}.kv", width, hidden_size)
    yield from projection(f"{part}.gate", width, hidden_size)
    yield Parameter(f"{part}.position_bias", (ratio, width), "bias", "")
    yield from norm(f"{part}.norm", "rms", size)


# The parameters of layers with a state, kind by kind.


def state_parameters(state: State, hidden_size: int) -> Iterator[Parameter]:
    """Yield the parameters of one layer."""
    match state.kind:
        case "mamba1":
            return _mamba1(state, hidden_size)
        case "mamba2":
            return _mamba2(state, hidden_size)
        case "gated_delta":
            return _gated_delta(state, hidden_size)
        case "kimi_delta":
            return _kimi_delta(state, hidden_size)
        case "short_conv":
            return _short_conv(state, hidden_size)
        case "ngram_conv" | "stream_conv":
            return _convolution(state)
        case "linear_attention":
            return _linear_attention(state, hidden_size)


def _convolution(state: State, rows: Rows = ()) -> Iterator[Parameter]:
    """One filter for each channel."""
    yield Parameter("conv", (state.conv_channels, state.conv_taps or state.conv_kernel), "matrix", rows=rows)
    if state.conv_bias:
        yield Parameter("conv", (state.conv_channels,), "bias", "bias")


def _decay(*sizes: int) -> Iterator[Parameter]:
    yield Parameter("A_log", sizes, "bias", "")


def _mamba1(state: State, hidden_size: int) -> Iterator[Parameter]:
    """Channels with a state of ``columns`` each; the step comes through a matrix of low rank."""
    *_, inner, columns = state.recurrent_shape
    yield from projection("in", (("input", inner), ("gate", inner)), hidden_size, bias=state.bias)
    yield from _convolution(state)
    yield from projection("x", (("step", state.rank), ("B", columns), ("C", columns)), inner)
    yield from projection("step", inner, state.rank, bias=True)
    yield from _decay(inner, columns)
    yield Parameter("D", (inner,), "bias", "")
    yield from projection("out", hidden_size, inner, bias=state.bias)
    if state.norms:  # Jamba's
        yield from norm("step_norm", "rms", state.rank)
        yield from norm("B_norm", "rms", columns)
        yield from norm("C_norm", "rms", columns)


def _mamba2(state: State, hidden_size: int) -> Iterator[Parameter]:
    """Heads of ``rows`` x ``columns``; B and C are shared by the heads of a group."""
    heads, rows, columns = state.recurrent_shape
    inner, group = heads * rows, state.num_groups * columns
    stacked: Rows = (("gate", inner), ("input", inner), ("B", group), ("C", group), ("step", heads))
    yield from projection("in", stacked, hidden_size, bias=state.bias)
    yield from _convolution(state)
    yield from _decay(heads)
    yield Parameter("D", (heads,), "bias", "")
    yield Parameter("step_bias", (heads,), "bias", "")
    if state.norms:
        yield from norm("gated_norm", "rms", inner)
    yield from projection("out", hidden_size, inner, bias=state.output_bias)


def _gated_delta(state: State, hidden_size: int) -> Iterator[Parameter]:
    """Queries and keys of ``key_heads``, values of ``num_heads``; a decay and a write strength of each of these."""
    keys, values = state.key_heads * state.key_size, state.num_heads * state.value_size
    stacked: Rows = (("query", keys), ("key", keys), ("value", values), ("gate", values))
    yield from projection("in", stacked, hidden_size)
    yield from projection(
        "decay_and_strength", (("decay", state.num_heads), ("strength", state.num_heads)), hidden_size
    )
    yield from _convolution(state, stacked[:3])
    yield from _decay(state.num_heads)
    yield Parameter("step_bias", (state.num_heads,), "bias", "")
    yield from norm("gated_norm", "rms", state.value_size)
    yield from projection("out", hidden_size, values)


def _kimi_delta(state: State, hidden_size: int) -> Iterator[Parameter]:
    """Yield the parameters of gated delta, with a decay of each element of a key; decay and gate come through matrices
    of low rank.

    full_gate, full_decay: through one.
    """
    size = state.num_heads * state.key_size
    stacked: Rows = (("query", size), ("key", size), ("value", size))
    yield from projection("qkv", stacked, hidden_size)
    yield from _convolution(state, stacked)
    yield from projection("strength", state.num_heads, hidden_size)
    for part, is_full in (("decay", state.full_decay), ("gate", state.full_gate)):
        if is_full:
            yield from projection(part, size, hidden_size)
        else:
            yield from projection(f"{part}_down", state.rank, hidden_size)
            yield from projection(f"{part}_up", size, state.rank)
    yield from _decay(state.num_heads)
    yield Parameter("step_bias", (size,), "bias", "")
    yield from norm("gated_norm", "rms", state.value_size)
    yield from projection("out", hidden_size, size)


def _short_conv(state: State, hidden_size: int) -> Iterator[Parameter]:
    """A convolution between two gates (LFM2)."""
    stacked: Rows = (("B", hidden_size), ("C", hidden_size), ("input", hidden_size))
    yield from projection("in", stacked, hidden_size, bias=state.bias)
    yield from _convolution(state)
    yield from projection("out", hidden_size, hidden_size, bias=state.bias)


def _linear_attention(state: State, hidden_size: int) -> Iterator[Parameter]:
    """Lightning attention (MiniMax): decays are fixed, so only projections, a gate and norms have weights."""
    heads, rows, _ = state.recurrent_shape
    size = prod((heads, rows))
    yield from projection("qkv", (("query", size), ("key", size), ("value", size)), hidden_size, bias=state.bias)
    if state.norms:
        yield from norm("query_norm", "rms", state.key_size)
        yield from norm("key_norm", "rms", state.key_size)
    yield from projection("gate", size, hidden_size)
    yield from norm("output_norm", "rms", size)
    yield from projection("out", hidden_size, size)
