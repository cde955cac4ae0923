"""Speed of the CPU kernels: decode attention against plain reading of memory, prefill attention against torch's GEMM.

    python benchmarks/kernels.py [--dtype float32|bfloat16] [--repeat 9]

Each line is the best and the median of the repetitions, all layers of a pool larger than the caches, random blocks.
Building, allocation and the first repetition are not timed. Run it on a quiet machine: threads that wait for a core
that somebody else has make every figure meaningless.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from kvplan_engine.attention.backend import AttentionInputs, AttentionOptions
from kvplan_engine.attention.layer_cache import uniform_cache
from kvplan_engine.attention.metadata import AttentionMetadata, KvSlots
from kvplan_engine.models.device_kernels import select_kernels

BLOCK_SIZE = 16
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Workload:
    """A batch of sequences of one model shape."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    num_layers: int
    num_sequences: int
    kv_len: int
    query_len: int

    def kv_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of keys and values that one pass over all layers reads at least."""
        per_token = self.num_layers * 2 * self.num_kv_heads * self.head_size * dtype.itemsize
        return self.num_sequences * self.kv_len * per_token

    def flops(self) -> int:
        """Multiplications and additions of the scores and values that the causal mask leaves."""
        pairs = sum(self.kv_len - self.query_len + 1 + i for i in range(self.query_len))
        return 4 * self.num_layers * self.num_sequences * self.num_heads * self.head_size * pairs


DECODE = (
    Workload("llama-135m, 64 x 200", 9, 3, 64, 30, 64, 200, 1),
    Workload("gpt2-124m, 64 x 200", 12, 12, 64, 12, 64, 200, 1),
    Workload("llama-3-8b shape, 64 x 200", 32, 8, 128, 4, 64, 200, 1),
    Workload("qwen2-7b shape, 64 x 200", 28, 4, 128, 8, 64, 200, 1),
    Workload("llama-135m, 1 x 8000", 9, 3, 64, 30, 1, 8000, 1),
)
PREFILL = (
    Workload("llama-135m, 8 x 256", 9, 3, 64, 30, 8, 256, 256),
    Workload("gpt2-124m, 8 x 256", 12, 12, 64, 12, 8, 256, 256),
    Workload("llama-3-8b shape, 1 x 2048", 32, 8, 128, 2, 1, 2048, 2048),
)


def seconds_of(action: Callable[[], object], repeat: int) -> list[float]:
    """Wall-clock seconds of each of ``repeat`` runs, after one that is not counted."""
    action()
    samples = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        samples.append(time.perf_counter() - start)
    return samples


def attention_pass(work: Workload, dtype: torch.dtype) -> Callable[[], None]:
    """One call per layer over a pool of random values whose blocks lie in random order."""
    blocks = -(-work.kv_len // BLOCK_SIZE)
    num_blocks = blocks * work.num_sequences
    kv = torch.empty(
        num_blocks, work.num_layers, 2, work.num_kv_heads, BLOCK_SIZE, work.head_size, dtype=dtype
    ).normal_()
    tokens = work.num_sequences * work.query_len
    metadata = AttentionMetadata(
        slots=KvSlots(torch.empty(0, dtype=torch.int64)),
        block_tables=torch.randperm(num_blocks, dtype=torch.int32).view(work.num_sequences, blocks),
        seq_lens=torch.full((work.num_sequences,), work.kv_len, dtype=torch.int32),
        query_starts=torch.arange(0, tokens + 1, work.query_len, dtype=torch.int32),
        max_query_len=work.query_len,
    )
    query = torch.randn(tokens, work.num_heads, work.head_size).to(dtype)
    out = torch.empty_like(query)
    backend = select_kernels("cpu", "cpu", dtype).attention
    options = AttentionOptions(work.head_size**-0.5)

    def run() -> None:
        for layer in range(work.num_layers):
            backend.attend(AttentionInputs(query, uniform_cache(kv, layer), metadata, out, options))

    return run


def report(name: str, amount: float, unit: str, samples: list[float]) -> None:
    best, median = amount / min(samples) / GIGA, amount / statistics.median(samples) / GIGA
    print(f"{name:40} best {best:7.1f} {unit}   median {median:7.1f} {unit}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    dtype: torch.dtype = getattr(torch, options.dtype)
    print(f"{torch.get_num_threads()} threads, {options.dtype}, block size {BLOCK_SIZE}, {options.repeat} repetitions")
    source, target = torch.ones(2, 1 << 26).unbind()
    report("memory: copy, read + write", 2 * source.nbytes, "GB/s", seconds_of(lambda: target.copy_(source), 5))
    report("memory: read in order", source.nbytes, "GB/s", seconds_of(source.sum, 5))
    for work in DECODE:
        samples = seconds_of(attention_pass(work, dtype), options.repeat)
        report(f"decode: {work.name}", work.kv_bytes(dtype), "GB/s", samples)
    square = torch.randn(2048, 2048)
    report("torch GEMM 2048, float32", 2 * 2048**3, "GFLOP/s", seconds_of(lambda: square @ square, 5))
    for work in PREFILL:
        report(
            f"prefill: {work.name}", work.flops(), "GFLOP/s", seconds_of(attention_pass(work, dtype), options.repeat)
        )


if __name__ == "__main__":
    main()
