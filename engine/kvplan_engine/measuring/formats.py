"""Measurements of products with weights in few bits, and of experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kvplan_engine.kernels.cuda.mixtures import (
    LARGE_ROWS,
    Matrix,
    ProductShape,
    Rows,
    Work,
    even_items,
    product_rows,
    run_product,
)
from kvplan_engine.kernels.cuda.products.quantised import FEW_ROWS, CudaQuantised
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.quantised_weight import QuantisedWeight, linear_book
from kvplan_engine.measuring.support import Bench

AWQ, BLOCKS, EXPERTS_UP = "product of 4 bits by AWQ", "fp8 blocks", "experts, up"
WIDENED = ", widened"
CODES = {AWQ: (4, 28672, 4096, (1, 16, 256)), BLOCKS: (8, 4096, 7168, (16, 64, 256, 2048))}
"""Bits, outputs, inputs and rows."""
EXPERTS = {"mixtral-8x7b": (8, 2, 14336, 4096), "qwen3-30b-a3b": (128, 8, 768, 2048)}
"""Experts, those that a token takes, their size and the hidden size; both are gated by silu."""
EXPERT_TOKENS = (64, 8192)
GROUP = 128
_BF16 = torch.bfloat16


def measure_formats(bench: Bench) -> None:
    """Measure bytes of codes, or of experts, a second: FP8 blocks as they are and widened, experts in all tiles."""
    rate = max(bench.copy_bytes_per_second(), bench.read_bytes_per_second())
    for name, (bits, outputs, inputs, counts) in CODES.items():
        weight = _weight(bench, bits, *((GROUP, 2 * GROUP) if bench.dry else (outputs, inputs)))
        for rows in (2, 20) if bench.dry else counts:
            ways = (True, False) if name == BLOCKS and rows > FEW_ROWS else (True,)
            for as_it_is in ways:
                _measure_codes(bench, name if as_it_is else name + WIDENED, weight, rows, as_it_is, rate)
        del weight
        bench.release_memory()
    for model, sizes in {"tiny": (4, 2, 64, 64)}.items() if bench.dry else EXPERTS.items():
        for tokens in (9, 40) if bench.dry else EXPERT_TOKENS:
            _measure_experts(bench, model, sizes, tokens, rate)
        bench.release_memory()


def _weight(bench: Bench, bits: int, outputs: int, inputs: int) -> QuantisedWeight:
    """Codes of zeros, with a scale for each 128 inputs; of 8 bits they are float8's."""
    codes = torch.zeros(outputs, inputs * bits // 8, dtype=torch.uint8, device=bench.device)
    scales = torch.ones(outputs, inputs // GROUP, device=bench.device)
    if bits == 4:
        return QuantisedWeight(codes, scales, torch.zeros_like(scales), linear_book(4, 0).to(bench.device))
    book = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0.0)
    return QuantisedWeight(codes, scales, None, book.to(bench.device), rounds_inputs=True)


def _measure_codes(bench: Bench, name: str, weight: QuantisedWeight, rows: int, as_it_is: bool, rate: float) -> None:
    given = QuantisedWeight(weight.codes, weight.scales, weight.minimums, weight.book, rounds_inputs=as_it_is)
    memory = StepMemory(torch.zeros(2 * weight.num_outputs * weight.num_inputs, dtype=torch.uint8, device=bench.device))
    kernels = CudaQuantised(bench.runtime, memory, given, None, _BF16)
    x = torch.zeros(rows, weight.num_inputs, dtype=_BF16, device=bench.device)
    out = torch.zeros(rows, weight.num_outputs, dtype=_BF16, device=bench.device)
    shape: dict[str, object] = {"outputs": weight.num_outputs, "inputs": weight.num_inputs, "rows": rows}
    _add(bench, name, shape, partial(kernels, x, out), weight.codes.nbytes, rate)


def _measure_experts(bench: Bench, model: str, sizes: tuple[int, int, int, int], tokens: int, rate: float) -> None:
    """Every expert has as many pairs. Weights that fit a cache are read from it: those here do not."""
    experts, top_k, size, hidden = sizes
    pairs = max(1, tokens * top_k // experts)
    chosen = product_rows(tokens, pairs, _BF16, bench.runtime.properties)
    weight = torch.zeros(experts, 2 * size, hidden, dtype=_BF16, device=bench.device)
    x = torch.zeros(experts * pairs, hidden, dtype=_BF16, device=bench.device)
    out = torch.zeros(experts * pairs, size, dtype=_BF16, device=bench.device)
    matrix = Matrix(weight, None, size, ProductShape(_BF16, _BF16, "silu", is_gated=True))
    for tile in dict.fromkeys((chosen, LARGE_ROWS // 2)) if chosen == LARGE_ROWS else (chosen,):
        items, order = even_items(experts, pairs, tile, bench.device)
        work = Work(items.shape[0], len(order), tile, items.data_ptr(), order.data_ptr())
        given = (matrix, work, Rows(x.data_ptr(), hidden), Rows(out.data_ptr(), size))
        shape: dict[str, object] = {"model": model, "tokens": tokens, "rows of a tile": tile}
        _add(bench, EXPERTS_UP, shape, partial(run_product, bench.runtime, *given), weight.nbytes, rate)


def _add(bench: Bench, name: str, shape: dict[str, Any], work: Callable[[], object], moved: int, rate: float) -> None:
    said = "bytes of inputs and outputs are not counted"
    bench.add_bandwidth("formats", name, shape, work, moved, rate, reference="the best bandwidth", excluded=said)
