"""Random paged batches whose memory is poisoned wherever attention has no business."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kvplan_engine.attention.backend import (
    AttentionBackend,
    AttentionInputs,
    AttentionMetadata,
    AttentionOptions,
    KvSlots,
)
from kvplan_engine.attention.layer_cache import LayerCache, uniform_cache
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.kernels.cpu.library import load_kernels

LAYER = 1
NUM_LAYERS = 3
PADDING_ROWS = 3
UNTOUCHED = 12345.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads and blocks of one case."""

    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 64
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A pool, a batch over it, and the queries."""

    shape: Shape
    kv: torch.Tensor
    query: torch.Tensor
    metadata: AttentionMetadata
    sinks: torch.Tensor | None = None
    slopes: torch.Tensor | None = None

    def inputs(self, out: torch.Tensor, scale: float | None = None, cache: LayerCache | None = None) -> AttentionInputs:
        """The call that computes ``out``; by default scores are divided by the root of the head size.

        cache: where keys and values lie, the pool's by default.
        """
        shape = self.shape
        scale = shape.head_size**-0.5 if scale is None else scale
        options = AttentionOptions(scale, shape.window, shape.softcap, self.sinks, self.slopes)
        cache = uniform_cache(self.kv, LAYER) if cache is None else cache
        return AttentionInputs(self.query, cache, self.metadata, out, options)


def make_case(
    shape: Shape,
    lengths: list[tuple[int, int]],
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Case:
    """A case for sequences with ``lengths`` = (new tokens, tokens in the cache with them).

    The pool is NaN except for the tokens that some query may see; so are the blocks that a window has left behind, and
    the block tables name blocks far outside the pool wherever they should not be read.
    """
    generator = torch.Generator().manual_seed(seed)
    blocks_per_sequence = [-(-kv_len // shape.block_size) for _, kv_len in lengths]
    num_blocks = sum(blocks_per_sequence) + 2
    pool = (num_blocks, NUM_LAYERS, 2, shape.num_kv_heads, shape.block_size, shape.head_size)
    kv = torch.full(pool, float("nan"), dtype=kv_dtype or dtype)
    free = torch.randperm(num_blocks, generator=generator).tolist()
    tables = torch.full((len(lengths), max(blocks_per_sequence) + 2), 2**30, dtype=torch.int32)
    for sequence, (query_len, kv_len) in enumerate(lengths):
        first = 0 if shape.window is None else max(0, kv_len - query_len + 1 - shape.window)
        for index in range(first // shape.block_size, blocks_per_sequence[sequence]):
            block = free.pop()
            tables[sequence, index] = block
            begin = max(first - index * shape.block_size, 0)
            end = min(kv_len - index * shape.block_size, shape.block_size)
            row = (2, shape.num_kv_heads, end - begin, shape.head_size)
            kv[block, LAYER, :, :, begin:end] = torch.randn(row, generator=generator).to(kv.dtype)
    return Case(shape, kv, _fused_query(shape, lengths, dtype, generator), _metadata(lengths, tables))


def _fused_query(
    shape: Shape, lengths: list[tuple[int, int]], dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    """Queries as a view into a fused projection's rows, some padding rows behind them."""
    tokens = sum(query_len for query_len, _ in lengths) + PADDING_ROWS
    heads = shape.num_heads + 2 * shape.num_kv_heads
    fused = torch.randn(tokens, heads * shape.head_size, generator=generator).to(dtype)
    return fused.view(tokens, heads, shape.head_size)[:, : shape.num_heads]


def _metadata(lengths: list[tuple[int, int]], tables: torch.Tensor) -> AttentionMetadata:
    query_lens = torch.tensor([query_len for query_len, _ in lengths])
    starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    starts[1:] = query_lens.cumsum(0)
    return AttentionMetadata(
        slots=KvSlots(torch.empty(0, dtype=torch.int64)),
        block_tables=tables[:, :-1],
        seq_lens=torch.tensor([kv_len for _, kv_len in lengths], dtype=torch.int32),
        query_starts=starts,
        max_query_len=int(query_lens.max()),
    )


def attend(
    backend: AttentionBackend, case: Case, out_dtype: torch.dtype | None = None, cache: LayerCache | None = None
) -> torch.Tensor:
    """The backend's output on the case, padding rows included."""
    shape = case.query.shape if cache is None else (*case.query.shape[:2], cache.value_size)
    out = torch.full(shape, UNTOUCHED, dtype=out_dtype or case.query.dtype)
    backend.attend(case.inputs(out, cache=cache))
    return out


def assert_matches_definition(backend: AttentionBackend, case: Case, cache: LayerCache | None = None) -> None:
    """The backend is as near to the float64 definition as the float32 definition is, times five: sums differ in order.

    With bfloat16 storage the one rounding of the result comes on top: half a unit in the last of 8 bits. Where AMX's
    tiles multiply, the softmax's weights are rounded too, to 16 bits: a sum moves by as much of the largest value.
    """
    exact = attend(ReferenceBackend(torch.float64), case, torch.float64, cache)
    in_float32 = attend(ReferenceBackend(), case, torch.float32, cache)
    result = attend(backend, case, cache=cache)
    real_rows = exact.shape[0] - PADDING_ROWS
    assert torch.equal(result[real_rows:], torch.full_like(result[real_rows:], UNTOUCHED)), "wrote into padding rows"
    error = (result.double() - exact)[:real_rows].abs()
    allowed = 5.0 * float((in_float32.double() - exact)[:real_rows].abs().max()) + 2e-7
    rounding = exact[:real_rows].abs() * 2.0**-8 if result.dtype is torch.bfloat16 else 0.0
    if case.query.dtype is case.kv.dtype is torch.bfloat16 and load_kernels().has_tiles:
        allowed += 2.0**-16 * float(case.kv.nan_to_num().abs().max())
    assert bool((error <= allowed + rounding).all()), f"worst error {float(error.max()):.2e}, allowed {allowed:.2e}"


def with_kv(case: Case, kv: torch.Tensor) -> Case:
    """The same batch over another pool."""
    return replace(case, kv=kv)
