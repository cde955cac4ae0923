"""Measurements of the other kernels, and of copies of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear

from kvplan_engine.attention.backend import KvSlots, Rotation
from kvplan_engine.attention.layer_cache import uniform_cache
from kvplan_engine.kernels import torch_ops
from kvplan_engine.kernels.arguments import InputRows
from kvplan_engine.kernels.cuda.products.skinny import ACTIVATIONS, MOST_ROWS, CudaSkinny, multiplies_few_rows
from kvplan_engine.kernels.cuda.sampling import DRAW_ROW, CudaDraws, StepTokens
from kvplan_engine.measuring.attention import BLOCK_SIZE, DRY_HEADS, LLAMA
from kvplan_engine.measuring.support import Bench
from kvplan_engine.memory.workspace import HostPool

RANDOM = {"key": 7, "scale": 1.8, "max_distance": math.inf, "top_p": 1.0}
DRAWS: dict[str, dict[str, float]] = {
    "greedy": {},
    "temperature": RANDOM,
    "top-p": RANDOM | {"top_p": 0.95},
    "top-k": RANDOM | {"top_k": 50},
}
"""What rows ask of csrc/cuda/sampling (DrawRow)."""
INPUT_SHAPES = ((1, 64), (256, 64), (64, 256), (16, 8192))
"""Sequences, and blocks that their tables have."""


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

    def add(name: str, work: Callable[[], object], moved: int) -> None:
        measure_operation(bench, name, work, moved, copy_rate)

    add("add_rms_norm", lambda: bench.ops.add_rms_norm(delta, x, weight, 1e-5, out), 4 * x.nbytes)
    add("silu_and_mul", lambda: bench.ops.silu_and_mul(gate_up, active), gate_up.nbytes + active.nbytes)
    add("argmax_rows", lambda: bench.ops.argmax_rows(logits, best), logits.nbytes)
    add("argmax_rows of one row", lambda: bench.ops.argmax_rows(logits[:1], best[:1]), logits[:1].nbytes)
    measure_draws(bench, logits, best, copy_rate)
    measure_write(bench, copy_rate)
    measure_host_copies(bench, copy_rate)


def measure_draws(bench: Bench, logits: torch.Tensor, best: torch.Tensor, copy_rate: float) -> None:
    """Tokens drawn as sequences ask, of all rows and of one: the logits' bytes over the time, however often read."""
    kernel, columns = CudaDraws(bench.runtime), -(-logits.shape[1] // 8) * 8
    counts = torch.zeros(1, columns, dtype=torch.int16, device=bench.device)
    tokens = StepTokens(torch.arange(logits.shape[0], device=bench.device))
    for way, fields in DRAWS.items():
        asked = np.zeros(logits.shape[0], DRAW_ROW)
        for name, value in fields.items():
            asked[name] = value
        rows = torch.from_numpy(asked.view(np.uint8).reshape(len(asked), -1)).to(bench.device)
        for number in (logits.shape[0], 1):
            name = f"sample_rows, {way}" + ("" if number > 1 else ", of one row")
            work = partial(kernel, logits[:number], rows, counts, tokens, best[:number])
            measure_operation(bench, name, work, logits[:number].nbytes, copy_rate)


def measure_operation(bench: Bench, name: str, work: Callable[[], object], moved: int, copy_rate: float) -> None:
    """One row: ``moved`` bytes over the time of ``work``."""
    bench.add_bandwidth("operations", name, {"bytes": moved}, work, moved, copy_rate, reference="copy bandwidth")


def measure_write(bench: Bench, copy_rate: float) -> None:
    """K and V into their slots with both rotations: read q, k, v once, write them once."""
    heads = DRY_HEADS if bench.dry else LLAMA
    for tokens in (8,) if bench.dry else (1, 8192):
        num_blocks = tokens // BLOCK_SIZE + 1
        kv = torch.zeros(num_blocks, 2, 2, heads.kv, BLOCK_SIZE, heads.size, dtype=torch.bfloat16, device=bench.device)
        fused = torch.randn(tokens, heads.query + 2 * heads.kv, heads.size, device=bench.device).to(torch.bfloat16)
        queries_and_keys, value = fused.split([heads.query + heads.kv, heads.kv], dim=1)
        slots = KvSlots(torch.randperm(num_blocks * BLOCK_SIZE, device=bench.device)[:tokens])
        positions = torch.arange(tokens, device=bench.device) % 2048
        rotation = Rotation(queries_and_keys, positions, torch.rand(2048, heads.size, device=bench.device))
        write = partial(bench.backend.rotate_and_write, rotation, value, uniform_cache(kv, 1), slots)
        measure_operation(bench, f"rotate_and_write_kv of {tokens} tokens", write, 2 * fused.nbytes, copy_rate)


def measure_host_copies(bench: Bench, copy_rate: float) -> None:
    """Blocks swapped to pinned memory of the host and back: what preemption and tiers run at."""
    num_blocks, block_bytes = (4, 1024) if bench.dry else (256, 2 << 20)
    blocks = torch.zeros(num_blocks, block_bytes, dtype=torch.uint8, device=bench.device)
    host = HostPool(num_blocks, block_bytes, is_pinned=not bench.dry)
    pairs = torch.stack([torch.randperm(num_blocks), torch.randperm(num_blocks)], dim=1).to(bench.device)
    for name, source, target in (("to", blocks, host.blocks), ("from", host.blocks, blocks)):
        copy = partial(bench.ops.copy_blocks, source, target, pairs)
        measure_operation(bench, f"copy_blocks {name} pinned memory", copy, blocks.nbytes, copy_rate)
    bench.synchronize()
    host.close()
    measure_inputs(bench, copy_rate)


def measure_inputs(bench: Bench, copy_rate: float) -> None:
    """A decode step's inputs from pinned memory: by our kernel, and by a copy for each buffer."""
    for rows, columns in ((4, 3),) if bench.dry else INPUT_SHAPES:
        int64, int32 = ((rows,), torch.int64), ((rows,), torch.int32)
        shapes = [int64, int64, int64, int32, int32, ((rows, columns), torch.int32)]
        inputs = []
        for shape, dtype in shapes:
            host = torch.ones(shape, dtype=dtype, pin_memory=not bench.dry)
            on_device = torch.empty(shape, dtype=dtype, device=bench.device)
            inputs.append(InputRows(host, on_device, rows, columns if len(shape) == 2 else None))
        moved = sum(each.source.nbytes for each in inputs)
        ways = {"inputs by copy_inputs": bench.ops.copy_inputs, "inputs by a copy each": torch_ops.copy_inputs}
        for name, way in ways.items():
            measure_operation(bench, f"{name}, {rows} x {columns}", partial(way, inputs, None), moved, copy_rate)


# Measurements of a decode step's products alone, by cuBLAS and by our own kernel of few rows.


PRODUCTS = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
PRODUCTS |= {"head": (128256, 4096)}
"""Of llama-3.1-8b: outputs and inputs."""
PRODUCT_ROWS = (1, 4, 8, 16, 64, 256)
FOLLOWS = {"o": "residual", "gate_up": "silu_and_mul", "down": "residual"}
"""What our own products of few rows do on the way, as in the model."""
WEIGHT_BYTES = 1 << 30
"""Weights are copied until they take this much, and used in turn: none is in the cache when it is read again."""


def measure_products(bench: Bench) -> None:
    """A decode step's products alone: bytes of the weight over time."""
    rate = max(bench.copy_bytes_per_second(), bench.read_bytes_per_second())
    shapes = {"qkv": (96, 64), "gate_up": (192, 64), "o": (64, 64)} if bench.dry else PRODUCTS
    for name, (outputs, inputs) in shapes.items():
        count = 2 if bench.dry else max(2, WEIGHT_BYTES // (2 * outputs * inputs))
        weights = [
            torch.randn(outputs, inputs, device=bench.device, dtype=torch.bfloat16).mul_(0.02) for _ in range(count)
        ]
        for rows in (2, 17) if bench.dry else PRODUCT_ROWS:
            x = torch.randn(rows, inputs, device=bench.device).to(torch.bfloat16)
            shape = {"product": name, "outputs": outputs, "inputs": inputs, "rows": rows}
            work = partial(_multiply_by_cublas, x, weights)
            _add_product(bench, "cuBLAS alone", shape, weights, work, rate)
            if rows <= MOST_ROWS:
                _measure_skinny(bench, shape, x, weights, rate)
        del weights
        bench.release_memory()


def _measure_skinny(
    bench: Bench, shape: dict[str, object], x: torch.Tensor, weights: list[torch.Tensor], rate: float
) -> None:
    """The same products by our own kernel with what follows them, launched one after the other, and early."""
    if not multiplies_few_rows(weights[0], bench.runtime.properties):
        return
    follows = FOLLOWS.get(str(shape["product"]))
    activation = follows if follows in ACTIVATIONS else None
    columns = weights[0].shape[0] // (1 if activation is None else 2)
    out = torch.zeros(x.shape[0], columns, dtype=x.dtype, device=x.device)
    kernels = CudaSkinny(bench.runtime)
    options = {"activation": activation, "residual": out if follows == "residual" else None}
    work = partial(_multiply_by_skinny, kernels, x, weights, out, options)
    for is_early in (False, True) if bench.runtime.properties.has_dependent_launch else (False,):
        bench.runtime.overlaps_launches = is_early
        _add_product(bench, "skinny products", shape | {"follows": follows, "early": is_early}, weights, work, rate)
    bench.runtime.overlaps_launches = False


def _multiply_by_cublas(x: torch.Tensor, weights: list[torch.Tensor]) -> None:
    for weight in weights:
        linear(x, weight)


def _multiply_by_skinny(
    kernels: CudaSkinny, x: torch.Tensor, weights: list[torch.Tensor], out: torch.Tensor, options: dict[str, Any]
) -> None:
    for weight in weights:
        kernels.multiply(x, weight, None, out, **options)


def _add_product(
    bench: Bench,
    name: str,
    shape: dict[str, object],
    weights: list[torch.Tensor],
    work: Callable[[], object],
    rate: float,
) -> None:
    """One row: a weight's bytes over its share of the time of ``work``, which multiplies with all of them."""
    said = {"reference": "the best bandwidth", "excluded": "bytes of inputs and outputs are not counted"}
    bench.add_bandwidth("products", name, shape, work, weights[0].nbytes, rate, count=len(weights), **said)
