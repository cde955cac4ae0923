"""Decode attention over a KV cache in bfloat16, fp8 and int8: milliseconds for one layer, and ratios to bfloat16.

    python benchmarks/kv_formats.py                 # Llama 3.1 8B's heads and SmolLM2's, on one thread and on all

The formats run in turn, so that what else the machine does is spread over all of them; medians of eight calls.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch

from kvplan_engine.attention.backend import AttentionInputs, AttentionOptions
from kvplan_engine.attention.layer_cache import LayerCache
from kvplan_engine.attention.metadata import AttentionMetadata, KvSlots
from kvplan_engine.blocks.scaled_pages import SCALE_BYTES, scaled_page_bytes, scales_offset
from kvplan_engine.models.device_kernels import select_kernels

BLOCK_SIZE = 16
HEADS = {"llama-3.1-8b": (32, 8, 128), "smollm2-135m": (9, 3, 64)}
"""Query heads, KV heads, elements of a head."""
BATCHES = ((1, 16384), (8, 4096))
"""Sequences, and tokens of each."""
FORMATS = {"bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


def cache_of(dtype: torch.dtype, num_blocks: int, num_kv_heads: int, head_size: int) -> LayerCache:
    """One layer over blocks of its own, of zeros."""
    rows = num_kv_heads * BLOCK_SIZE
    code_bytes, is_scaled = rows * head_size * dtype.itemsize, dtype is torch.int8
    page_bytes = scaled_page_bytes(code_bytes, rows) if is_scaled else code_bytes
    blocks = torch.zeros(num_blocks, 2 * page_bytes, dtype=torch.uint8)
    pages, scales = [], []
    for begin in (0, page_bytes):
        codes = blocks[:, begin : begin + code_bytes].view(dtype)
        pages.append(codes.unflatten(1, (num_kv_heads, BLOCK_SIZE, head_size)))
        at = begin + scales_offset(code_bytes)
        found = blocks[:, at : at + rows * SCALE_BYTES].view(torch.float32) if is_scaled else None
        scales.append(None if found is None else found.unflatten(1, (num_kv_heads, BLOCK_SIZE)))
    return LayerCache(*pages, 0, key_scales=scales[0], value_scales=scales[1])


def milliseconds(heads: tuple[int, int, int], num_sequences: int, context: int, repeat: int) -> dict[str, float]:
    """The median of ``repeat`` calls behind one that warms up, by format."""
    num_heads, num_kv_heads, head_size = heads
    num_blocks = num_sequences * context // BLOCK_SIZE
    tables = torch.randperm(num_blocks).to(torch.int32).view(num_sequences, -1)
    lengths = torch.full((num_sequences,), context, dtype=torch.int32)
    starts = torch.arange(num_sequences + 1, dtype=torch.int32)
    metadata = AttentionMetadata(KvSlots(torch.empty(0, dtype=torch.int64)), tables, lengths, starts, 1)
    query = torch.randn(num_sequences, num_heads, head_size).bfloat16()
    backend = select_kernels("cpu", "cpu", torch.bfloat16).attention
    samples: dict[str, list[float]] = {name: [] for name in FORMATS}
    caches = {name: cache_of(dtype, num_blocks, num_kv_heads, head_size) for name, dtype in FORMATS.items()}
    for _ in range(repeat + 1):
        for name, cache in caches.items():
            inputs = AttentionInputs(query, cache, metadata, torch.empty_like(query), AttentionOptions(0.125))
            begun = time.perf_counter()
            backend.attend(inputs)
            samples[name].append(1e3 * (time.perf_counter() - begun))
    return {name: statistics.median(values[1:]) for name, values in samples.items()}


def main() -> None:
    """One line for each model, batch and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=8)
    options = parser.parse_args()
    for model, heads in HEADS.items():
        for num_sequences, context in BATCHES:
            for threads in (1, os.cpu_count() or 1):
                torch.set_num_threads(threads)
                found = milliseconds(heads, num_sequences, context, options.repeat)
                named = "  ".join(f"{n} {v:6.2f} ms ({v / found['bfloat16']:.2f})" for n, v in found.items())
                print(f"{model:<13} {num_sequences} x {context:>6,} tokens, {threads} threads:  {named}", flush=True)


if __name__ == "__main__":
    main()
