"""Latent attention on the CPU: a layer of DeepSeek-V2-Lite's shape, each part beside what the machine could do at best.

    python benchmarks/latent_step.py [--dtype bfloat16|float32] [--context 1024]

The shape: hidden size 2048, 16 heads of 128 + 64, values of 128, a latent of 512 and a rotary key of 64. A part's floor
is the larger of its bytes at the read bandwidth and its operations at the peak rate, both measured in the same run.
Decode steps of 1, 16 and 64 sequences, and a prompt of 512 tokens. Minima; on a busy machine give the command priority
(``chrt -f 10``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from decode_step import best_seconds, peak_rate, read_bandwidth

from kvplan_engine.attention.backend import AttentionInputs, AttentionOptions
from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.attention.layer_cache import latent_cache
from kvplan_engine.attention.metadata import AttentionMetadata, KvSlots
from kvplan_engine.kernels.cpu.head_products import PackedHeads
from kvplan_engine.kernels.cpu.library import load_kernels
from kvplan_engine.kernels.cpu.packed import PackedWeight

HIDDEN, HEADS, NOPE, ROPE, VALUE, RANK = 2048, 16, 128, 64, 128, 512
ROW = RANK + ROPE
BLOCK_SIZE = 16
COPIES = 6
"""Of the weights, in turn, as in a model of so many layers: one alone would stay in the caches."""


@dataclass(frozen=True, slots=True)
class Machine:
    bandwidth: float
    rate: float


@dataclass(frozen=True, slots=True)
class Batch:
    """``sequences`` of ``context`` tokens, the last ``new_tokens`` of each being computed."""

    sequences: int
    new_tokens: int
    context: int

    @property
    def rows(self) -> int:
        return self.sequences * self.new_tokens

    @property
    def pairs(self) -> int:
        """Of a query token and a token that it sees."""
        return self.sequences * sum(range(self.context - self.new_tokens + 1, self.context + 1))


def random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype).normal_(0, 0.02)


def product(outputs: int, inputs: int, dtype: torch.dtype, batch: Batch) -> tuple[Callable[[], None], int, int]:
    """A product with a weight, its bytes and its operations."""
    weights = cycle([PackedWeight(load_kernels(), random(dtype, outputs, inputs)) for _ in range(COPIES)])
    x, out = random(dtype, batch.rows, inputs), random(dtype, batch.rows, outputs)
    return (
        lambda: next(weights).multiply(x, out),
        outputs * inputs * dtype.itemsize,
        2 * batch.rows * outputs * inputs,
    )


def heads(outputs: int, inputs: int, dtype: torch.dtype, batch: Batch) -> tuple[Callable[[], None], int, int]:
    """A product for each head, likewise."""
    weights = cycle([PackedHeads(load_kernels(), random(dtype, HEADS, outputs, inputs)) for _ in range(COPIES)])
    x, out = random(dtype, batch.rows, HEADS, inputs), random(dtype, batch.rows, HEADS, outputs)
    size = HEADS * outputs * inputs
    return lambda: next(weights).multiply(x, out), size * dtype.itemsize, 2 * batch.rows * size


def attention(dtype: torch.dtype, batch: Batch) -> tuple[Callable[[], None], int, int]:
    """Attention over the rows that are kept, likewise."""
    blocks = -(-batch.context // BLOCK_SIZE)
    rows = random(dtype, batch.sequences * blocks, 1, BLOCK_SIZE, ROW)
    tables = torch.randperm(batch.sequences * blocks, dtype=torch.int32).view(batch.sequences, blocks)
    metadata = AttentionMetadata(
        slots=KvSlots(torch.empty(0, dtype=torch.int64)),
        block_tables=tables,
        seq_lens=torch.full((batch.sequences,), batch.context, dtype=torch.int32),
        query_starts=torch.arange(batch.sequences + 1, dtype=torch.int32) * batch.new_tokens,
        max_query_len=batch.new_tokens,
    )
    query, out = random(dtype, batch.rows, HEADS, ROW), random(dtype, batch.rows, HEADS, RANK)
    inputs = AttentionInputs(query, latent_cache(rows, RANK, 0), metadata, out, AttentionOptions(192**-0.5))
    backend = CpuBackend(load_kernels())
    num_bytes = batch.sequences * batch.context * ROW * dtype.itemsize
    return lambda: backend.attend(inputs), num_bytes, 2 * batch.pairs * HEADS * (ROW + RANK)


def time_batch(batch: Batch, dtype: torch.dtype, machine: Machine) -> None:
    """Milliseconds of each part and of all of them, with their floors."""
    parts = {
        "query": product(HEADS * (NOPE + ROPE), HIDDEN, dtype, batch),
        "latent": product(ROW, HIDDEN, dtype, batch),
        "into the latent space": heads(RANK, NOPE, dtype, batch),
        "attention": attention(dtype, batch),
        "out of the latent space": heads(VALUE, RANK, dtype, batch),
        "output": product(HIDDEN, HEADS * VALUE, dtype, batch),
    }
    print(f"{batch.sequences} x {batch.new_tokens} tokens, context {batch.context}: ms, floor, ratio")
    total = total_floor = 0.0
    for name, (action, num_bytes, operations) in parts.items():
        seconds = best_seconds(action, 12)
        floor = max(num_bytes / machine.bandwidth, operations / machine.rate)
        total, total_floor = total + seconds, total_floor + floor
        print(f"  {name:24} {seconds * 1e3:8.3f} {floor * 1e3:8.3f} {seconds / floor:6.2f}")
    print(f"  {'all':24} {total * 1e3:8.3f} {total_floor * 1e3:8.3f} {total / total_floor:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--context", type=int, default=1024)
    arguments = parser.parse_args()
    machine = Machine(read_bandwidth(), peak_rate(arguments.dtype))
    print(f"{machine.bandwidth / 1e9:.1f} GB/s, {machine.rate / 1e9:.0f} GFLOP/s, {torch.get_num_threads()} threads")
    batches = [Batch(number, 1, arguments.context) for number in (1, 16, 64)] + [Batch(1, 512, 512)]
    for batch in batches:
        time_batch(batch, getattr(torch, arguments.dtype), machine)


if __name__ == "__main__":
    main()
