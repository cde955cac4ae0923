"""Measurements of prefill attention: beside torch's own kernels, and a few queries behind long prefixes."""

from __future__ import annotations

import statistics
from functools import partial
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.measuring.attention import DRY_HEADS, EXCLUDED, LLAMA, ModelHeads, Pool, attend_all_layers, make_pool
from kvplan_engine.measuring.support import Bench

GOAL = 0.90  # of flash attention's rate


class PrefillShape(NamedTuple):
    """``batch`` sequences of ``new_tokens`` behind ``prefix`` cached ones."""

    batch: int
    new_tokens: int
    prefix: int

    @property
    def visible_pairs(self) -> int:
        """(query, key) pairs of one sequence."""
        return self.new_tokens * self.prefix + self.new_tokens * (self.new_tokens + 1) // 2


SHAPES = [
    PrefillShape(1, 8192, 0),
    PrefillShape(4, 2048, 0),
    PrefillShape(16, 512, 0),
    PrefillShape(1, 1024, 7168),
    PrefillShape(8, 128, 2048),
]
SHORT_SHAPES = [PrefillShape(1, 64, 32768), PrefillShape(16, 4, 8192), PrefillShape(1, 4, 32768)]
YARDSTICKS = {"flash attention": SDPBackend.FLASH_ATTENTION, "cuDNN attention": SDPBackend.CUDNN_ATTENTION}


class TimedKernel(NamedTuple):
    """What the rows call it, and who launches it."""

    name: str
    backend: CudaBackend


def measure_prefill(bench: Bench) -> None:
    """Every shape; each row is written as it comes."""
    copy_rate = bench.copy_bytes_per_second()
    heads = DRY_HEADS if bench.dry else LLAMA
    shapes = [PrefillShape(2, 20, 0), PrefillShape(2, 9, 30)] if bench.dry else SHAPES
    short_shapes = [PrefillShape(1, 3, 60)] if bench.dry else SHORT_SHAPES
    kernels = [TimedKernel("prefill attention", bench.backend)]
    if bench.wgmma_backend is not None:  # last: no GPU has run it, and if it hung it would take what comes after it
        kernels.append(TimedKernel("prefill attention of warp groups", bench.wgmma_backend))
    their_seconds: dict[tuple[str, PrefillShape], float | None] = {}
    for kernel in kernels:
        for shape in shapes:
            measure_shape(bench, heads, shape, kernel, their_seconds)
        for shape in short_shapes:
            measure_short_shape(bench, heads, shape, kernel, copy_rate)


def pool_of_prompts(bench: Bench, heads: ModelHeads, shape: PrefillShape) -> Pool:
    """The pool of a step of ``shape``."""
    return make_pool(bench, heads, [shape.prefix + shape.new_tokens] * shape.batch, shape.new_tokens)


def measure_shape(
    bench: Bench,
    heads: ModelHeads,
    shape: PrefillShape,
    kernel: TimedKernel,
    their_seconds: dict[tuple[str, PrefillShape], float | None],
) -> None:
    """Floating-point operations over time, against each yardstick on the same tokens without a prefix.

    their_seconds: of yardsticks that have been measured; None for one that torch lacks.
    """
    pool = pool_of_prompts(bench, heads, shape)
    samples = bench.time(partial(attend_all_layers, kernel.backend, pool))
    seconds = statistics.median(samples) / pool.layers
    rate = 4 * heads.query * heads.size * shape.batch * shape.visible_pairs / seconds
    whole = PrefillShape(shape.batch, shape.prefix + shape.new_tokens, 0)
    for name, backend in YARDSTICKS.items():
        if (name, whole) not in their_seconds:
            their_seconds[name, whole] = measure_yardstick(bench, heads, whole, name)
        theirs = their_seconds[name, whole]
        if theirs is None:
            continue
        their_rate = 4 * heads.query * heads.size * whole.batch * whole.visible_pairs / theirs
        bench.add(
            "prefill",
            kernel.name,
            rate / 1e12,
            "TFLOP/s",
            {"model": heads.model, **shape._asdict()},
            share=rate / their_rate,
            reference=f"{name}'s rate over the whole sequence" if shape.prefix else name,
            goal=GOAL if backend is SDPBackend.FLASH_ATTENTION else None,
            median_seconds=seconds,
            samples_seconds=samples,
            excluded="launch from Python (captured graph); masked pairs are not counted as work",
        )


def measure_yardstick(bench: Bench, heads: ModelHeads, shape: PrefillShape, name: str) -> float | None:
    """Seconds of one of torch's own attentions, with a row of its rate; None where torch lacks it."""
    seconds = yardstick_seconds(bench, heads, shape, YARDSTICKS[name])
    if seconds is not None:
        rate = 4 * heads.query * heads.size * shape.batch * shape.visible_pairs / seconds
        length = {"model": heads.model, "batch": shape.batch, "length": shape.new_tokens}
        bench.add("prefill", name, rate / 1e12, "TFLOP/s", length, median_seconds=seconds)
    return seconds


def measure_short_shape(
    bench: Bench, heads: ModelHeads, shape: PrefillShape, kernel: TimedKernel, copy_rate: float
) -> None:
    """Few queries read the KV of many tokens: bytes over time, as a decode step is measured."""
    pool = pool_of_prompts(bench, heads, shape)
    bench.add_bandwidth(
        "prefill",
        f"{kernel.name}, few queries behind a long prefix",
        {"model": heads.model, **shape._asdict()},
        partial(attend_all_layers, kernel.backend, pool),
        pool.kv_bytes,
        copy_rate,
        count=pool.layers,
        reference="copy bandwidth",
        excluded=EXCLUDED,
    )


def yardstick_seconds(bench: Bench, heads: ModelHeads, shape: PrefillShape, backend: SDPBackend) -> float | None:
    """Seconds of one of torch's own attentions over whole sequences, four in a graph; None where torch lacks it."""
    size = (shape.batch, heads.query, shape.new_tokens, heads.size)
    query = torch.randn(size, device=bench.device).to(torch.bfloat16)
    key, value = (torch.randn_like(query[:, : heads.kv]) for _ in range(2))
    calls = 4

    def attend() -> None:
        with sdpa_kernel([SDPBackend.MATH] if bench.dry else [backend]):
            for _ in range(calls):
                scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    try:
        return statistics.median(bench.time(attend)) / calls
    except RuntimeError as error:
        if "No available kernel" not in str(error):
            raise
        print(f"torch has no {backend.name} here", flush=True)
        return None
