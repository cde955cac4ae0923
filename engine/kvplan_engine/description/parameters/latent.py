"""The parameters of latent and of compressed attention, and of the index that either may have."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan_engine.description.mixers import CompressedAttention, Indexer, LatentAttention
from kvplan_engine.description.parameters.parameter import Parameter, norm, projection


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
