"""Paged attention in plain torch: the definition that every other backend is tested against."""

from __future__ import annotations

import torch

from kvplan_engine.attention.backend import (
    ALL_OPTIONS,
    AttentionInputs,
    AttentionOptions,
    ChoiceInputs,
    KvSlots,
    Rotation,
)
from kvplan_engine.attention.checks import read_blocks, write_rows
from kvplan_engine.attention.layer_cache import LayerCache
from kvplan_engine.kernels import torch_ops


class ReferenceBackend:
    """Loops over the sequences, gathers their keys and values by block table, and does the maths in one dtype.

    ``compute_dtype`` is float32; tests use float64 to see what float32 itself gets wrong.
    """

    name = "reference"
    options = ALL_OPTIONS
    is_capturable = False
    takes_any_values = True
    chooses = True

    def __init__(self, compute_dtype: torch.dtype = torch.float32) -> None:
        self._compute_dtype = compute_dtype

    def write_kv(self, key: torch.Tensor, value: torch.Tensor | None, cache: LayerCache, slots: KvSlots) -> None:
        """See AttentionBackend.write_kv."""
        wanted = slots.keys >= 0
        write_rows(key[wanted], cache.keys, cache.key_scales, slots.keys[wanted])
        if value is not None:
            value_slots = slots.keys if slots.values is None else slots.values
            write_rows(value[wanted], cache.values, cache.value_scales, value_slots[wanted])

    def rotate_and_write(self, rotation: Rotation, value: torch.Tensor, cache: LayerCache, slots: KvSlots) -> None:
        """See AttentionBackend.rotate_and_write. Rotates the keys in place too."""
        torch_ops.rope_inplace(rotation.heads, rotation.positions, rotation.cos_sin)
        self.write_kv(rotation.heads[:, -value.shape[1] :], value, cache, slots)

    def attend(self, inputs: AttentionInputs) -> None:
        """See AttentionBackend.attend."""
        cache, metadata, window = inputs.cache, inputs.metadata, inputs.options.window
        key_tables = metadata.block_tables
        value_tables = key_tables if metadata.value_tables is None else metadata.value_tables
        starts = metadata.query_starts.tolist()
        for sequence, kv_len in enumerate(metadata.seq_lens.tolist()):
            rows = slice(starts[sequence], starts[sequence + 1])
            if rows.start == rows.stop:
                continue
            query_len = rows.stop - rows.start
            first = 0 if window is None else max(0, kv_len - query_len + 1 - window)
            keys = self._gather(cache.keys, cache.key_scales, key_tables[sequence], first, kv_len)
            values = self._gather(cache.values, cache.value_scales, value_tables[sequence], first, kv_len)
            seen = _visible(query_len, keys.shape[1], window, keys.device)
            if inputs.chosen is not None:
                seen &= _is_chosen(inputs.chosen[rows], kv_len)
            attended = self._attend_one(inputs.query[rows], keys, values, inputs.options, seen)
            inputs.out[rows] = attended.to(inputs.out.dtype)

    def choose(self, inputs: ChoiceInputs) -> None:
        """See AttentionBackend.choose."""
        metadata, top_k = inputs.metadata, inputs.chosen.shape[1]
        starts = metadata.query_starts.tolist()
        for sequence, kv_len in enumerate(metadata.seq_lens.tolist()):
            rows = slice(starts[sequence], starts[sequence + 1])
            if rows.start == rows.stop:
                continue
            keys = self._gather(inputs.index.keys, None, metadata.block_tables[sequence], 0, kv_len)[0]
            products = (inputs.query[rows].to(self._compute_dtype) @ keys.T).relu()  # [query_len, heads, kv_len]
            scores = (inputs.weights[rows].to(self._compute_dtype)[:, :, None] * products).sum(1)
            unseen = ~_visible(rows.stop - rows.start, kv_len, None, keys.device)
            order = scores.masked_fill(unseen, float("-inf")).sort(dim=1, descending=True, stable=True).indices
            taken = min(top_k, kv_len)
            inputs.chosen[rows, :taken] = order[:, :taken].sort(dim=1).values.to(torch.int32)

    def release_workspace(self) -> None:
        """See AttentionBackend.release_workspace: nothing is kept between steps."""

    def reserve_decode(
        self, cache: LayerCache, dtype: torch.dtype, num_heads: int, max_num_seqs: int, options: AttentionOptions
    ) -> None:
        """Nothing is captured: this backend reads lengths on the host."""

    def _gather(
        self, pool: torch.Tensor, scales: torch.Tensor | None, block_table: torch.Tensor, first: int, end: int
    ) -> torch.Tensor:
        """One sequence's keys or values at positions first..end, [hkv, end - first, d], of [num_blocks, hkv, bs, d].

        Nothing before ``first`` is touched: a window may have given those blocks back.
        """
        block_size = pool.shape[2]
        first_block, num_blocks = first // block_size, -(-end // block_size)
        found = read_blocks(pool, scales, block_table[first_block:num_blocks], self._compute_dtype)
        skipped = first - first_block * block_size
        return found[:, skipped : skipped + end - first]

    def _attend_one(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
        visible: torch.Tensor,
    ) -> torch.Tensor:
        """[query_len, hq, d] attended over keys and values [hkv, n, d]; the last query_len are the queries' own.

        visible [query_len, n] bool: which keys each query token sees.
        """
        group_size = query.shape[1] // keys.shape[0]
        heads_first = query.transpose(0, 1).to(self._compute_dtype)
        scores = heads_first @ keys.repeat_interleave(group_size, dim=0).transpose(1, 2) * options.scale
        if options.softcap is not None:
            scores = options.softcap * torch.tanh(scores / options.softcap)
        if options.slopes is not None:
            distances = _distances(query.shape[0], keys.shape[1], query.device)
            scores = scores + options.slopes.to(scores)[:, None, None] * distances
        weights = _softmax(scores.masked_fill(~visible, float("-inf")), options.sinks)
        return (weights @ values.repeat_interleave(group_size, dim=0)).transpose(0, 1)


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Weights [hq, query_len, n] of scores; with ``sinks`` [hq] they add up to less than 1."""
    if sinks is None:
        return scores.softmax(dim=-1)
    column = sinks.to(scores)[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]


def _is_chosen(chosen: torch.Tensor, kv_len: int) -> torch.Tensor:
    """[query_len, kv_len] bool of positions ``chosen`` [query_len, k]; behind a query's own they may be anything."""
    is_chosen = torch.zeros(chosen.shape[0], kv_len, dtype=torch.bool, device=chosen.device)
    return is_chosen.scatter_(1, chosen[:, : min(chosen.shape[1], kv_len)].clamp(0, kv_len - 1).long(), True)


def _distances(query_len: int, kv_len: int, device: torch.device) -> torch.Tensor:
    """[query_len, kv_len]: the position of each key less that of each query."""
    queries = torch.arange(kv_len - query_len, kv_len, device=device)
    return torch.arange(kv_len, device=device)[None, :] - queries[:, None]


def _visible(query_len: int, kv_len: int, window: int | None, device: torch.device) -> torch.Tensor:
    """[query_len, kv_len] bool: which key positions each query token may see."""
    positions = torch.arange(kv_len - query_len, kv_len, device=device)[:, None]
    keys = torch.arange(kv_len, device=device)[None, :]
    visible = keys <= positions
    if window is not None:
        visible &= keys > positions - window
    return visible
