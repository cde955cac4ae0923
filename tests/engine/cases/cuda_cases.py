"""Batches for the CUDA kernels' tests: a poisoned pool, scattered blocks, and the reference's answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kvplan_engine.attention.backend import AttentionInputs, AttentionMetadata, AttentionOptions, KvSlots
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.layer_cache import uniform_cache
from kvplan_engine.attention.reference import ReferenceBackend

SENTINEL = 768.0
"""Fills output rows that nobody may write. A value of every storage type, so that no comparison rounds it."""


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """One batch: ``seq_lens`` tokens in the cache, of which the last ``query_lens`` are new."""

    head_size: int
    block_size: int
    num_query_heads: int
    num_kv_heads: int
    seq_lens: tuple[int, ...]
    query_lens: tuple[int, ...]
    scalar: torch.dtype = torch.float32
    cache: torch.dtype | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    slopes: bool = False
    num_layers: int = 2
    layer: int = 1

    def __str__(self) -> str:
        extras = [
            f"w{self.window}" if self.window else "",
            "cap" if self.softcap else "",
            "sinks" if self.sinks else "",
            "slopes" if self.slopes else "",
        ]
        names = [str(t).removeprefix("torch.") for t in dict.fromkeys((self.scalar, self.cache or self.scalar))]
        shape = f"d{self.head_size}-bs{self.block_size}-h{self.num_query_heads}.{self.num_kv_heads}"
        return "-".join(filter(None, ["-".join(names), shape, *extras]))


@dataclass(slots=True)
class Batch:
    """A case's tensors. ``query`` and ``out`` are views into wider rows, as a model's fused buffers are."""

    query: torch.Tensor
    kv: torch.Tensor
    metadata: AttentionMetadata
    out: torch.Tensor
    out_memory: torch.Tensor
    sinks: torch.Tensor | None
    slopes: torch.Tensor | None


def build_batch(case: AttentionCase, device: torch.device | str = "cpu", seed: int = 0) -> Batch:
    """Random tensors for ``case``: every slot that no token owns is NaN, unused table entries are out of range."""
    generator = torch.Generator().manual_seed(seed)
    cache = case.cache or case.scalar
    num_blocks_of = [-(-length // case.block_size) for length in case.seq_lens]
    num_blocks = sum(num_blocks_of) + 2
    order = torch.randperm(num_blocks, generator=generator)
    width = max(num_blocks_of, default=0) + 1
    tables = torch.full((len(case.seq_lens), width), 2**30, dtype=torch.int32)
    pool_shape = (num_blocks, case.num_layers, 2, case.num_kv_heads, case.block_size, case.head_size)
    kv = torch.full(pool_shape, float("nan"))
    taken = 0
    for sequence, (length, count) in enumerate(zip(case.seq_lens, num_blocks_of, strict=True)):
        blocks = order[taken : taken + count]
        taken += count
        tables[sequence, :count] = blocks
        positions = torch.arange(length)
        rows = torch.randn(length, 2, case.num_kv_heads, case.head_size, generator=generator)
        kv[blocks[positions // case.block_size], case.layer, :, :, positions % case.block_size] = rows
    starts = torch.tensor([0, *case.query_lens]).cumsum(0).to(torch.int32)
    num_tokens = sum(case.query_lens)
    columns = case.num_query_heads * case.head_size
    memory = torch.randn(num_tokens + 1, columns + 32, generator=generator).to(case.scalar).to(device)
    out_memory = torch.full((num_tokens + 2, columns + 16), SENTINEL, dtype=case.scalar, device=device)
    metadata = AttentionMetadata(
        slots=KvSlots(torch.full((num_tokens,), -1, dtype=torch.int64, device=device)),
        block_tables=tables.to(device),
        seq_lens=torch.tensor(case.seq_lens, dtype=torch.int32, device=device),
        query_starts=starts.to(device),
        max_query_len=max(case.query_lens, default=0),
    )
    heads = (num_tokens, case.num_query_heads, case.head_size)
    sinks = torch.randn(case.num_query_heads, generator=generator).to(device) if case.sinks else None
    slopes = torch.linspace(-0.2, 0.5, case.num_query_heads).to(device) if case.slopes else None
    return Batch(
        query=memory[:num_tokens, 16 : 16 + columns].view(heads),
        kv=kv.to(cache).to(device),
        metadata=metadata,
        out=out_memory[:num_tokens, :columns].view(heads),
        out_memory=out_memory,
        sinks=sinks,
        slopes=slopes,
    )


def options_of(case: AttentionCase, batch: Batch) -> AttentionOptions:
    """How the case attends."""
    return AttentionOptions(case.head_size**-0.5, case.window, case.softcap, batch.sinks, batch.slopes)


def reference_output(case: AttentionCase, batch: Batch) -> torch.Tensor:
    """[T, hq, d] float64: what exact arithmetic over the stored values gives."""
    query = batch.query.double().cpu()
    out = torch.zeros(query.shape, dtype=torch.float64)
    metadata = AttentionMetadata(
        KvSlots(batch.metadata.slots.keys.cpu()),
        batch.metadata.block_tables.cpu(),
        batch.metadata.seq_lens.cpu(),
        batch.metadata.query_starts.cpu(),
        batch.metadata.max_query_len,
    )
    options = options_of(case, batch)
    if batch.sinks is not None:
        options = replace(options, sinks=batch.sinks.cpu())
    if batch.slopes is not None:
        options = replace(options, slopes=batch.slopes.cpu())
    inputs = AttentionInputs(query, uniform_cache(batch.kv.double().cpu(), case.layer), metadata, out, options)
    ReferenceBackend(torch.float64).attend(inputs)
    return out


def attend(backend: CudaBackend, case: AttentionCase, batch: Batch) -> None:
    """One layer's attention of the case."""
    options = options_of(case, batch)
    backend.attend(
        AttentionInputs(batch.query, uniform_cache(batch.kv, case.layer), batch.metadata, batch.out, options)
    )


def largest_error(case: AttentionCase, batch: Batch) -> float:
    """max |out - reference|, after checking that nothing outside ``out`` was written."""
    columns = case.num_query_heads * case.head_size
    num_tokens = sum(case.query_lens)
    assert (batch.out_memory[:, columns:] == SENTINEL).all(), "wrote beside the rows"
    assert (batch.out_memory[num_tokens:] == SENTINEL).all(), "wrote below the rows"
    if num_tokens == 0:
        return 0.0
    return float((batch.out.double().cpu() - reference_output(case, batch)).abs().max())


def tolerance(case: AttentionCase) -> float:
    """Float32 accumulates to about 1e-6; 16-bit types round the weights and the output once each (2^-8, 2^-11)."""
    return {torch.float32: 4e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}[case.scalar]
