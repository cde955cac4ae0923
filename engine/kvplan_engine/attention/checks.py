"""What attention asks of its arguments, on any device: a wrong one is ValueError before anything runs."""

from __future__ import annotations

import torch

from kvplan_engine.attention.backend import AttentionInputs, AttentionMetadata, ChoiceInputs, KvSlots
from kvplan_engine.attention.layer_cache import LayerCache
from kvplan_engine.kernels.arguments import check_rows, check_vector


def check_written_heads(key: torch.Tensor, value: torch.Tensor | None, cache: LayerCache, slots: KvSlots) -> None:
    """Keys and values [T, num_kv_heads, size] of the cache's heads, and a slot for each token."""
    num_tokens, dtype = key.shape[0], key.dtype
    check_rows("key", key, (num_tokens, cache.num_kv_heads, cache.head_size), dtype)
    if (value is None) != cache.values_in_keys:
        raise ValueError(f"layer {cache.layer} {'has' if value is None else 'lacks'} values apart from its keys")
    if value is not None:
        check_rows("value", value, (num_tokens, cache.num_kv_heads, cache.value_size), dtype)
    check_vector("slots", slots.keys, num_tokens, torch.int64)
    if slots.values is not None:
        check_vector("slots of the values", slots.values, num_tokens, torch.int64)


def check_attending_heads(query: torch.Tensor, out: torch.Tensor, cache: LayerCache) -> None:
    """Queries [T, num_heads, head_size] and outputs [T, num_heads, value_size]; heads share the cache's evenly."""
    num_tokens, num_heads, _ = query.shape
    check_rows("query", query, (num_tokens, num_heads, cache.head_size), query.dtype)
    check_rows("out", out, (num_tokens, num_heads, cache.value_size), query.dtype)
    if num_heads % cache.num_kv_heads:
        raise ValueError(f"{num_heads} query heads cannot share {cache.num_kv_heads} KV heads evenly")


def check_chosen(inputs: AttentionInputs) -> None:
    """What each query token has chosen, [T, k] int32, where attention can do with it."""
    chosen, options = inputs.chosen, inputs.options
    if chosen is None:
        return
    if inputs.cache.num_kv_heads != 1 or inputs.metadata.value_tables is not None or options.window or options.slopes:
        raise ValueError("chosen tokens are for one KV head, without a window, slopes or tables of values")
    if chosen.dtype is not torch.int32 or not chosen.is_contiguous() or chosen.shape[0] != inputs.query.shape[0]:
        raise ValueError(f"chosen is {chosen.dtype} {tuple(chosen.shape)}, wanted contiguous int32 [T, k]")


def check_choice(inputs: ChoiceInputs) -> None:
    """query [T, heads, size] with heads side by side, weights [T, heads], chosen [T, k] int32, an index of one head."""
    num_tokens, num_heads, size = inputs.query.shape
    check_rows("query", inputs.query, (num_tokens, num_heads, inputs.index.head_size), inputs.query.dtype)
    check_rows("weights", inputs.weights, (num_tokens, num_heads), inputs.query.dtype)
    check_rows("chosen", inputs.chosen, (num_tokens, inputs.chosen.shape[1]), torch.int32)
    if inputs.query.stride(1) != size or not inputs.chosen.is_contiguous() or inputs.index.num_kv_heads != 1:
        raise ValueError("a choice wants heads side by side, a contiguous result and an index of one head")


def check_metadata(metadata: AttentionMetadata) -> None:
    """Who the sequences of a step are: block_tables [S, B], seq_lens [S], query_starts [S + 1], all int32."""
    num_sequences = metadata.seq_lens.shape[0]
    check_vector("seq_lens", metadata.seq_lens, num_sequences, torch.int32)
    check_vector("query_starts", metadata.query_starts, num_sequences + 1, torch.int32)
    tables, values = metadata.block_tables, metadata.value_tables
    check_rows("block_tables", tables, (num_sequences, tables.shape[1]), torch.int32)
    if values is not None:
        check_rows("value_tables", values, tuple(tables.shape), torch.int32)
        if values.stride(0) != tables.stride(0):
            raise ValueError(f"value_tables have rows {values.stride(0)} apart, block_tables {tables.stride(0)}")


# Keys and values as a pool stores them, and back, in plain torch.


LARGEST_CODE = 127


def write_rows(rows: torch.Tensor, pages: torch.Tensor, scales: torch.Tensor | None, slots: torch.Tensor) -> None:
    """Store ``rows`` [T, hkv, d] at ``slots`` [T] of ``pages`` [num_blocks, hkv, bs, d]; scales: of an int8 pool."""
    blocks = torch.div(slots, pages.shape[2], rounding_mode="floor")
    offsets = slots % pages.shape[2]
    if scales is None:
        bytes_of(pages)[blocks, :, offsets] = bytes_of(_rounded(rows, pages.dtype))
    else:
        pages[blocks, :, offsets], scales[blocks, :, offsets] = quantised(rows)


def read_blocks(
    pages: torch.Tensor, scales: torch.Tensor | None, blocks: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """The values [hkv, n * bs, d] in ``blocks`` [n] of ``pages``, one block behind the other, in ``dtype``."""
    found = bytes_of(pages)[blocks.long()].view(pages.dtype)
    if scales is None:
        return found.transpose(0, 1).flatten(1, 2).to(dtype)
    exact = found.double() * scales[blocks.long()][..., None]
    return exact.transpose(0, 1).flatten(1, 2).to(dtype)


def quantised(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers [..., d] int8 of ``rows`` [..., d], and their scales [...] float32: values are integer * scale.

    A scale is the largest magnitude / 127; integers are rounded to nearest, ties to even, and all 0 where the scale is
    0, and where a value is not finite, which makes the scale a NaN.
    """
    values = rows.float()
    largest = values.abs().amax(dim=-1)
    scales = torch.where(largest.isfinite(), largest / LARGEST_CODE, torch.nan)
    steps = torch.where((scales > 0)[..., None], values / scales[..., None], 0.0)
    return steps.clamp(-LARGEST_CODE, LARGEST_CODE).round().to(torch.int8), scales


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or its bytes where torch cannot index its dtype."""
    return tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor


def _rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``tensor`` in ``dtype``: fp8 holds no more than 448 and, as torch converts to it, would make that NaN."""
    if dtype is torch.float8_e4m3fn:
        limit = torch.finfo(dtype).max
        tensor = tensor.clamp(-limit, limit)
    return tensor.to(dtype)
