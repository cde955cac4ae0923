"""Measurements of the attention kernels: bytes or floating-point operations over time, against the device's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from kvplan_engine.attention.backend import AttentionInputs, AttentionMetadata, AttentionOptions, KvSlots
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.layer_cache import uniform_cache
from kvplan_engine.measuring.support import Bench

BLOCK_SIZE = 16
EXCLUDED = "launch from Python (captured graph); bytes of queries, outputs and tables are not counted"
POOL_BYTES = 2 << 30
"""Layers are added until the pool has this size, and read in turn: nothing is in the cache when it is read again."""


@dataclass(frozen=True, slots=True)
class ModelHeads:
    """A model's attention shape."""

    model: str
    query: int
    kv: int
    size: int


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """``batch`` sequences of ``context`` tokens, or of that many in the mean where they are uneven.

    goal: the least share of the copy bandwidth that the project wants. layers: None for as many as POOL_BYTES takes.
    shared: tokens at the beginning, in whole blocks, that all sequences share.
    """

    heads: ModelHeads
    batch: int
    context: int
    goal: float | None = None
    layers: int | None = None
    cache: torch.dtype = torch.bfloat16
    block_size: int = BLOCK_SIZE
    is_uneven: bool = False
    shared: int = 0

    @property
    def lengths(self) -> list[int]:
        """From an eighth of the mean to fifteen, evenly, in an order that helps nobody."""
        if not self.is_uneven:
            return [self.context] * self.batch
        steps = [(7 * index) % self.batch for index in range(self.batch)]
        return [self.context * (self.batch + 14 * step) // (8 * self.batch) + 1 for step in steps]


LLAMA = ModelHeads("llama-3.1-8b", 32, 8, 128)
GPT2 = ModelHeads("gpt2", 12, 12, 64)
DRY_HEADS = ModelHeads("tiny", 4, 2, 64)
DECODE_SHAPES = [
    DecodeShape(LLAMA, 1, 32768, 0.85),
    DecodeShape(LLAMA, 16, 8192, 0.92),
    DecodeShape(LLAMA, 64, 4096, 0.92),
    DecodeShape(LLAMA, 256, 1024, 0.92),
    DecodeShape(LLAMA, 64, 4096, 0.92, layers=32),  # blocks 2 MiB apart, as in the engine
    DecodeShape(LLAMA, 64, 4096, cache=torch.float8_e4m3fn),
    DecodeShape(LLAMA, 64, 4096, block_size=32),
    DecodeShape(LLAMA, 64, 4096, is_uneven=True),
    DecodeShape(GPT2, 64, 1024, 0.80),
    DecodeShape(GPT2, 256, 1024, 0.80),
]
SHARED_SHAPES = [
    DecodeShape(LLAMA, 64, 4096, shared=3584),
    DecodeShape(LLAMA, 8, 8192, shared=7680),
    DecodeShape(LLAMA, 256, 1024),  # nothing to share: what looking for it costs
]
DRY_SHARED_SHAPES = [DecodeShape(DRY_HEADS, 3, 600, shared=512)]
DRY_DECODE_SHAPES = [
    DecodeShape(DRY_HEADS, 2, 40),
    DecodeShape(DRY_HEADS, 3, 16, cache=torch.float8_e4m3fn, block_size=32, is_uneven=True),
]


@dataclass(slots=True)
class Pool:
    """A filled pool with the metadata of one step over it."""

    kv: torch.Tensor
    metadata: AttentionMetadata
    query: torch.Tensor
    out: torch.Tensor

    @property
    def layers(self) -> int:
        return self.kv.shape[1]

    @property
    def kv_bytes(self) -> int:
        """Bytes of one layer, all tokens of the sequences."""
        heads, _, size = self.kv.shape[3:]
        return int(self.metadata.seq_lens.sum()) * 2 * heads * size * self.kv.itemsize


def make_pool(
    bench: Bench,
    heads: ModelHeads,
    lengths: Sequence[int],
    new_tokens: int,
    *,
    layers: int | None = None,
    cache: torch.dtype = torch.bfloat16,
    block_size: int = BLOCK_SIZE,
) -> Pool:
    """Sequences of ``lengths`` tokens in scattered blocks, of which the last ``new_tokens`` ask."""
    batch, blocks_each = len(lengths), -(-max(lengths) // block_size)
    num_blocks = sum(-(-length // block_size) for length in lengths)
    layer_bytes = num_blocks * 2 * heads.kv * block_size * heads.size * cache.itemsize
    layers = layers or (2 if bench.dry else max(2, min(64, POOL_BYTES // layer_bytes)))
    kv = torch.empty(num_blocks, layers, 2, heads.kv, block_size, heads.size, dtype=cache, device=bench.device)
    for layer in range(layers):
        kv[:, layer] = torch.randn(kv[:, layer].shape, dtype=torch.bfloat16, device=bench.device).to(cache)
    tables = torch.zeros(batch, blocks_each, dtype=torch.int32)
    places = torch.arange(blocks_each) < torch.tensor([[-(-length // block_size)] for length in lengths])
    tables[places] = torch.randperm(num_blocks).to(torch.int32)
    tokens = batch * new_tokens
    metadata = AttentionMetadata(
        slots=KvSlots(torch.zeros(tokens, dtype=torch.int64, device=bench.device)),
        block_tables=tables.to(bench.device),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=bench.device),
        query_starts=torch.arange(batch + 1, device=bench.device, dtype=torch.int32) * new_tokens,
        max_query_len=new_tokens,
    )
    query = torch.randn(tokens, heads.query, heads.size, device=bench.device).to(torch.bfloat16)
    return Pool(kv, metadata, query, torch.empty_like(query))


def pool_of(bench: Bench, shape: DecodeShape) -> Pool:
    """The pool of a decode step."""
    pool = make_pool(
        *(bench, shape.heads, shape.lengths, 1), layers=shape.layers, cache=shape.cache, block_size=shape.block_size
    )
    tables = pool.metadata.block_tables
    tables[:, : shape.shared // shape.block_size] = tables[0, : shape.shared // shape.block_size].clone()
    return pool


def attend_all_layers(backend: CudaBackend, pool: Pool) -> None:
    """One attention call for each layer of the pool."""
    options = AttentionOptions(pool.query.shape[2] ** -0.5)
    for layer in range(pool.layers):
        backend.attend(AttentionInputs(pool.query, uniform_cache(pool.kv, layer), pool.metadata, pool.out, options))


def measure_decode(bench: Bench) -> None:
    """Bytes of KV over time, all layers of a step in one graph, against the copy bandwidth of the same run."""
    copy_rate = bench.copy_bytes_per_second()
    for shape in DRY_DECODE_SHAPES if bench.dry else DECODE_SHAPES:
        measure_decode_shape(bench, bench.backend, "decode attention", shape, copy_rate)
        bench.release_memory()


def measure_shared(bench: Bench) -> None:
    """Decode behind a prefix that all share, one by one and together; rates count what each sequence sees."""
    copy_rate = bench.copy_bytes_per_second()
    for shape in DRY_SHARED_SHAPES if bench.dry else SHARED_SHAPES:
        pool = pool_of(bench, shape)
        for name, backend in (("", bench.backend), (" of shared prefixes", bench.cascade_backend)):
            measure_decode_shape(bench, backend, f"decode attention{name}", shape, copy_rate, pool)
        bench.release_memory()


def measure_decode_shape(
    bench: Bench, backend: CudaBackend, name: str, shape: DecodeShape, copy_rate: float, pool: Pool | None = None
) -> None:
    """One row of decode attention."""
    pool = pool or pool_of(bench, shape)
    bench.add_bandwidth(
        "decode",
        name,
        {
            "model": shape.heads.model,
            "batch": shape.batch,
            "context": f"uneven, {shape.context} in the mean" if shape.is_uneven else shape.context,
            "shared": shape.shared,
            "layers": pool.layers,
            "block_size": shape.block_size,
            "cache": str(shape.cache).removeprefix("torch."),
        },
        partial(attend_all_layers, backend, pool),
        pool.kv_bytes,
        copy_rate,
        count=pool.layers,
        reference="copy bandwidth",
        goal=shape.goal,
        excluded=EXCLUDED,
    )


def measure_tuning(bench: Bench) -> None:
    """The decode kernel's warps and stages: which are best, for the defaults in cuda_attention."""
    copy_rate = bench.copy_bytes_per_second()
    for shape in DRY_DECODE_SHAPES[:1] if bench.dry else [DECODE_SHAPES[1], DECODE_SHAPES[3]]:
        pool = pool_of(bench, shape)
        for warps, stages in [(4, 2)] if bench.dry else [(2, 3), (2, 4), (4, 2), (4, 3), (8, 2), (8, 3)]:
            name = f"decode with {warps} warps, {stages} stages"
            measure_decode_shape(bench, bench.backend_with(warps, stages), name, shape, copy_rate, pool)
