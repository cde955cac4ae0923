"""Attention's parameters: one matrix for queries, keys and values, because one product is faster than three."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan_engine.description.mixers import Attention, Indexer
from kvplan_engine.description.norms import NormKind
from kvplan_engine.description.parameters.parameter import Parameter, Rows, norm, projection


def attention_parameters(attention: Attention, hidden_size: int, norm_kind: NormKind) -> Iterator[Parameter]:
    """Of one layer. norm_kind: the layer's, for norms of heads that name no kind of their own."""
    if attention.shared_weights:
        return
    yield from projection("qkv", _rows(attention), hidden_size, bias=attention.qkv_bias)
    yield from projection("output", hidden_size, attention.output_size, bias=attention.output_bias)
    if attention.gate == "separate":
        yield from projection("gate", attention.output_size, hidden_size)
    elif attention.gate == "head":
        yield from projection("gate", attention.num_heads, hidden_size)
    kind = attention.head_norm_kind or norm_kind
    query_size, key_size = _normed_sizes(attention)
    if query_size:
        yield from norm("query_norm", kind, query_size)
        if attention.reads_layer is None:
            yield from norm("key_norm", kind, key_size)
    if attention.sinks:
        yield Parameter("sinks", (attention.num_heads,), "bias", "")
    if attention.indexer is not None:
        yield from _indexer_parameters(attention.indexer, hidden_size, kind)


def _indexer_parameters(indexer: Indexer, hidden_size: int, norm_kind: NormKind) -> Iterator[Parameter]:
    """MiniMax M3's: small queries and one small key from the layer's input, both normalised."""
    rows: Rows = (("query", indexer.num_heads * indexer.head_size), ("key", indexer.head_size))
    yield from projection("indexer.qk", rows, hidden_size)
    yield from norm("indexer.query_norm", norm_kind, indexer.head_size)
    yield from norm("indexer.key_norm", norm_kind, indexer.head_size)


def _rows(attention: Attention) -> Rows:
    query = attention.query_size * (2 if attention.gate == "element" else 1)
    rows: Rows = (("query", query),)
    if attention.reads_layer is None:
        rows += (("key", attention.num_kv_heads * attention.key_size),)
        if not attention.value_is_key:
            rows += (("value", attention.num_kv_heads * attention.value_size),)
    return rows


def _normed_sizes(attention: Attention) -> tuple[int, int]:
    """Weights of the norms of queries and of keys; 0 where there are none."""
    match attention.head_norm:
        case "none":
            return 0, 0
        case "head":
            return attention.key_size, attention.key_size
        case "per_head" | "all":
            return attention.query_size, attention.num_kv_heads * attention.key_size
