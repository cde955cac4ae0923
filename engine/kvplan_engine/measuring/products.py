"""Measurements of a decode step's products alone, by cuBLAS and by our own kernel of few rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear

from kvplan_engine.kernels.cuda.products.skinny import CudaSkinny
from kvplan_engine.kernels.cuda.products.skinny_launch import ACTIVATIONS, MOST_ROWS, multiplies_few_rows
from kvplan_engine.measuring.support import Bench, Row

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
    samples = bench.time(work)
    seconds = statistics.median(samples) / len(weights)
    bench.add(
        Row(
            "products",
            name,
            weights[0].nbytes / seconds / 1e9,
            "GB/s",
            shape,
            share=weights[0].nbytes / seconds / rate,
            reference="the best bandwidth",
            median_seconds=seconds,
            samples_seconds=samples,
            excluded="bytes of inputs and outputs are not counted",
        )
    )
