"""Measurements of single kernels: bytes or floating-point operations over time, against the device's own."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kvplan_engine.attention.backend import AttentionInputs, AttentionOptions, Rotation
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.layer_cache import uniform_cache
from kvplan_engine.attention.metadata import AttentionMetadata, KvSlots
from measure_support import Bench, Row

BLOCK_SIZE = 16
POOL_BYTES = 2 << 30
"""Layers are added until the pool has this size, and read in turn: nothing is in the cache when it is read again."""


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's attention shape."""

    model: str
    query: int
    kv: int
    size: int


LLAMA = Heads("llama-3.1-8b", 32, 8, 128)
GPT2 = Heads("gpt2", 12, 12, 64)
DECODE_SHAPES = [
    (LLAMA, 1, 32768),
    (LLAMA, 16, 8192),
    (LLAMA, 64, 4096),
    (LLAMA, 256, 1024),
    (GPT2, 64, 1024),
    (GPT2, 256, 1024),
]
DECODE_GOALS = {"llama-3.1-8b": 0.85, "gpt2": 0.80}
PREFILL_SHAPES = [(1, 8192, 0), (4, 2048, 0), (16, 512, 0), (1, 1024, 7168), (8, 128, 2048)]
PREFILL_GOAL = 0.60
DRY_HEADS = Heads("tiny", 4, 2, 64)


@dataclass(slots=True)
class Pool:
    """A filled pool with the metadata of one step over it."""

    kv: torch.Tensor
    metadata: AttentionMetadata
    query: torch.Tensor
    out: torch.Tensor


def make_pool(bench: Bench, heads: Heads, batch: int, new_tokens: int, prefix: int) -> Pool:
    """``batch`` sequences of prefix + new_tokens tokens in scattered blocks, in as many layers as POOL_BYTES takes."""
    length = prefix + new_tokens
    blocks_each = -(-length // BLOCK_SIZE)
    num_blocks = batch * blocks_each
    layer_bytes = num_blocks * 2 * heads.kv * BLOCK_SIZE * heads.size * 2
    layers = 2 if bench.dry else max(2, min(64, POOL_BYTES // layer_bytes))
    kv = torch.empty(num_blocks, layers, 2, heads.kv, BLOCK_SIZE, heads.size, dtype=torch.bfloat16, device=bench.device)
    kv.normal_()
    tables = torch.randperm(num_blocks, device=bench.device).to(torch.int32).view(batch, blocks_each)
    starts = torch.arange(batch + 1, device=bench.device, dtype=torch.int32) * new_tokens
    tokens = batch * new_tokens
    metadata = AttentionMetadata(
        slots=KvSlots(torch.zeros(tokens, dtype=torch.int64, device=bench.device)),
        block_tables=tables,
        seq_lens=torch.full((batch,), length, dtype=torch.int32, device=bench.device),
        query_starts=starts,
        max_query_len=new_tokens,
    )
    query = torch.randn(tokens, heads.query, heads.size, device=bench.device).to(torch.bfloat16)
    return Pool(kv, metadata, query, torch.empty_like(query))


def attend_all_layers(backend: CudaBackend, pool: Pool) -> None:
    """One attention call for each layer of the pool."""
    options = AttentionOptions(pool.query.shape[2] ** -0.5)
    for layer in range(pool.kv.shape[1]):
        backend.attend(AttentionInputs(pool.query, uniform_cache(pool.kv, layer), pool.metadata, pool.out, options))


def measure_decode(bench: Bench) -> None:
    """Bytes of KV over time, all layers of a step in one graph, against the copy bandwidth of the same run."""
    copy_rate = bench.copy_bytes_per_second()
    shapes = [(DRY_HEADS, 2, 40)] if bench.dry else DECODE_SHAPES
    for heads, batch, context in shapes:
        pool = make_pool(bench, heads, batch, 1, context - 1)
        measure_decode_shape(bench, bench.backend, "decode attention", heads, pool, copy_rate)


def measure_decode_shape(
    bench: Bench, backend: CudaBackend, name: str, heads: Heads, pool: Pool, copy_rate: float
) -> None:
    """One row of decode attention."""
    samples = bench.time(lambda: attend_all_layers(backend, pool))
    layers = pool.kv.shape[1]
    seconds = statistics.median(samples) / layers
    batch, context = pool.metadata.seq_lens.shape[0], int(pool.metadata.seq_lens[0])
    kv_bytes = batch * context * 2 * heads.kv * heads.size * 2
    bench.add(
        Row(
            "decode",
            name,
            kv_bytes / seconds / 1e9,
            "GB/s",
            {"model": heads.model, "batch": batch, "context": context, "layers": layers, "block_size": BLOCK_SIZE},
            share=kv_bytes / seconds / copy_rate,
            reference="copy bandwidth",
            goal=DECODE_GOALS.get(heads.model),
            median_seconds=seconds,
            samples_seconds=samples,
            excluded="launch from Python (captured graph); bytes of queries, outputs and tables are not counted",
        )
    )


def measure_tuning(bench: Bench) -> None:
    """The decode kernel's warps and stages: which are best, for the defaults in cuda_attention."""
    copy_rate = bench.copy_bytes_per_second()
    shapes = [(DRY_HEADS, 2, 40)] if bench.dry else [DECODE_SHAPES[1], DECODE_SHAPES[3]]
    for heads, batch, context in shapes:
        pool = make_pool(bench, heads, batch, 1, context - 1)
        for warps, stages in [(4, 2)] if bench.dry else [(2, 3), (2, 4), (4, 2), (4, 3), (8, 2), (8, 3)]:
            name = f"decode with {warps} warps, {stages} stages"
            measure_decode_shape(bench, bench.backend_with(warps, stages), name, heads, pool, copy_rate)


def visible_pairs(new_tokens: int, prefix: int) -> int:
    """(query, key) pairs of one causal sequence."""
    return new_tokens * prefix + new_tokens * (new_tokens + 1) // 2


def measure_prefill(bench: Bench) -> None:
    """Floating-point operations over time, against torch's flash attention on the same new tokens without a prefix."""
    heads = DRY_HEADS if bench.dry else LLAMA
    for batch, new_tokens, prefix in [(2, 20, 0), (2, 9, 30)] if bench.dry else PREFILL_SHAPES:
        pool = make_pool(bench, heads, batch, new_tokens, prefix)
        samples = bench.time(lambda pool=pool: attend_all_layers(bench.backend, pool))
        seconds = statistics.median(samples) / pool.kv.shape[1]
        work = 4 * heads.query * heads.size * batch * visible_pairs(new_tokens, prefix)
        flash_seconds = measure_flash(bench, heads, batch, new_tokens + prefix, pool.kv.shape[1])
        flash_work = 4 * heads.query * heads.size * batch * visible_pairs(new_tokens + prefix, 0)
        bench.add(
            Row(
                "prefill",
                "prefill attention",
                work / seconds / 1e12,
                "TFLOP/s",
                {"model": heads.model, "batch": batch, "new_tokens": new_tokens, "prefix": prefix},
                share=(work / seconds) / (flash_work / flash_seconds),
                reference="flash attention's rate over the whole sequence" if prefix else "flash attention",
                goal=PREFILL_GOAL,
                median_seconds=seconds,
                samples_seconds=samples,
                excluded="launch from Python (captured graph); masked pairs are not counted as work",
            )
        )


def measure_flash(bench: Bench, heads: Heads, batch: int, length: int, calls: int) -> float:
    """Seconds of torch's flash attention over whole sequences; as many calls in one graph as ours are measured with."""
    shape = (batch, heads.query, length, heads.size)
    query = torch.randn(shape, device=bench.device).to(torch.bfloat16)
    key, value = (torch.randn_like(query[:, : heads.kv]) for _ in range(2))
    backends = [SDPBackend.MATH] if bench.dry else [SDPBackend.FLASH_ATTENTION]

    def attend() -> None:
        with sdpa_kernel(backends):
            for _ in range(calls):
                scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    return statistics.median(bench.time(attend)) / calls


def measure_operations(bench: Bench) -> None:
    """The element-wise kernels: bytes that must move over time, against the copy bandwidth."""
    copy_rate = bench.copy_bytes_per_second()
    tokens, hidden, ffn, vocab = (4, 64, 96, 100) if bench.dry else (8192, 4096, 14336, 128256)
    x, delta, out = (torch.randn(tokens, hidden, device=bench.device).to(torch.bfloat16) for _ in range(3))
    weight = torch.ones(hidden, dtype=torch.bfloat16, device=bench.device)
    gate_up = torch.randn(tokens, 2 * ffn, device=bench.device).to(torch.bfloat16)
    active = torch.empty(tokens, ffn, dtype=torch.bfloat16, device=bench.device)
    logits = torch.randn(min(tokens, 256), vocab, device=bench.device).to(torch.bfloat16)
    best = torch.empty(logits.shape[0], dtype=torch.int64, device=bench.device)
    works = {
        "add_rms_norm": (lambda: bench.ops.add_rms_norm(delta, x, weight, 1e-5, out), 4 * x.nbytes),
        "silu_and_mul": (lambda: bench.ops.silu_and_mul(gate_up, active), gate_up.nbytes + active.nbytes),
        "argmax_rows": (lambda: bench.ops.argmax_rows(logits, best), logits.nbytes),
    }
    for name, (work, moved) in works.items():
        samples = bench.time(work)
        seconds = statistics.median(samples)
        bench.add(
            Row(
                "operations",
                name,
                moved / seconds / 1e9,
                "GB/s",
                {"bytes": moved},
                share=moved / seconds / copy_rate,
                reference="copy bandwidth",
                median_seconds=seconds,
                samples_seconds=samples,
            )
        )
    measure_write(bench, copy_rate)


def measure_write(bench: Bench, copy_rate: float) -> None:
    """K and V into their slots with both rotations: read q, k, v once, write them once."""
    heads = DRY_HEADS if bench.dry else LLAMA
    tokens = 8 if bench.dry else 8192
    num_blocks = tokens // BLOCK_SIZE + 1
    kv = torch.zeros(num_blocks, 2, 2, heads.kv, BLOCK_SIZE, heads.size, dtype=torch.bfloat16, device=bench.device)
    fused = torch.randn(tokens, heads.query + 2 * heads.kv, heads.size, device=bench.device).to(torch.bfloat16)
    queries_and_keys, value = fused.split([heads.query + heads.kv, heads.kv], dim=1)
    slots = KvSlots(torch.randperm(num_blocks * BLOCK_SIZE, device=bench.device)[:tokens])
    positions = torch.arange(tokens, device=bench.device) % 2048
    cos_sin = torch.rand(2048, heads.size, device=bench.device)
    rotation = Rotation(queries_and_keys, positions, cos_sin)
    samples = bench.time(lambda: bench.backend.rotate_and_write(rotation, value, uniform_cache(kv, 1), slots))
    seconds = statistics.median(samples)
    moved = 2 * fused.nbytes
    bench.add(
        Row(
            "operations",
            "rotate_and_write_kv",
            moved / seconds / 1e9,
            "GB/s",
            {"model": heads.model, "tokens": tokens},
            share=moved / seconds / copy_rate,
            reference="copy bandwidth",
            median_seconds=seconds,
            samples_seconds=samples,
        )
    )
