"""Attention's parameters: one matrix for queries, keys and values, because one product is faster than three."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvplan_engine.description.mixers import Attention, Indexer
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
