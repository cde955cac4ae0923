"""Products with weights in few bits beside bfloat16, on one core: milliseconds and GFLOP/s at several numbers of rows.

    python benchmarks/quantised_products.py [--inputs 4096] [--outputs 4096] [--rows 1 4 16 64 512] [--repeat 8]

Several weights of each format are used in turn, more than the caches hold. The formats take turns, and each figure is
the median of the repetitions, or with --best the least, which a busy machine disturbs less. Run it on a quiet machine.
With --rounded each format has a second column, in which x is rounded to 8 bits.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from kvplan_engine.kernels.cpu.library import load_kernels
from kvplan_engine.kernels.cpu.packed import PackedWeight
from kvplan_engine.kernels.cpu.quantised import PackedQuantised
from kvplan_engine.kernels.quantised_weight import QuantisedWeight, linear_book

CACHE_BYTES = 64 * 1024**2
BLOCK = 256  # inputs whose scales of 8 bits share a float16


@dataclass(frozen=True, slots=True)
class Format:
    """How a weight is held: bits of a code, inputs of a group, what stands beside its codes."""

    bits: int
    group: int
    scales: torch.dtype
    has_minimum: bool = False

    def random(self, inputs: int, outputs: int) -> QuantisedWeight:
        codes = torch.randint(0, 256, (outputs, inputs * self.bits // 8), dtype=torch.uint8)
        scales, minimums = (torch.rand(2, outputs, inputs // self.group) * 63).to(self.scales)
        book = linear_book(self.bits, 0 if self.has_minimum else 2 ** (self.bits - 1))
        own = torch.rand(outputs, inputs // BLOCK, 2 if self.has_minimum else 1).half()
        held = QuantisedWeight(codes, scales, minimums if self.has_minimum else None, book)
        return replace(held, block_scales=own) if self.scales is torch.int8 else held


FORMATS = {
    "Q4_0": Format(4, 32, torch.float16),
    "Q8_0": Format(8, 32, torch.float16),
    "Q5_0": Format(6, 32, torch.float16),
    "Q4_K": Format(4, 32, torch.int8, has_minimum=True),
    "Q6_K": Format(6, 16, torch.int8),
}

Product = Callable[[torch.Tensor, torch.Tensor], None]


def _products(inputs: int, outputs: int, names: list[str], *, rounded: bool) -> dict[str, list[Product]]:
    """Of each format as many weights as the caches do not hold; rounded: and the same with x in 8 bits."""
    kernels = load_kernels()
    assert kernels is not None, "needs a compiler"
    made: dict[str, list[Product]] = {}
    for name in names:
        if name == "bfloat16":
            dense = torch.randn(outputs, inputs).bfloat16()
            made[name] = [PackedWeight(kernels, dense).multiply for _ in range(1 + CACHE_BYTES // dense.nbytes)]
            continue
        held = FORMATS[name]
        weight = held.random(inputs, outputs)
        count = 1 + CACHE_BYTES // weight.num_bytes
        made[name] = [PackedQuantised(kernels, weight).multiply for _ in range(count)]
        if rounded:
            weight = replace(weight, rounds_inputs=True)
            made[f"{name}, int8 x"] = [PackedQuantised(kernels, weight).multiply for _ in range(count)]
    return made


def _seconds(products: list[Product], x: torch.Tensor, out: torch.Tensor) -> float:
    """Of one product, over all the weights."""
    start = time.perf_counter()
    for product in products:
        product(x, out)
    return (time.perf_counter() - start) / len(products)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=4096)
    parser.add_argument("--outputs", type=int, default=4096)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 512])
    parser.add_argument("--repeat", type=int, default=8)
    parser.add_argument("--format", action="append", choices=["bfloat16", *FORMATS])
    parser.add_argument("--rounded", action="store_true")
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    made = _products(options.inputs, options.outputs, options.format or ["bfloat16", *FORMATS], rounded=options.rounded)
    print(f"{'rows':>5}  " + "".join(f"{name:>22}" for name in made))
    for rows in options.rows:
        x = torch.randn(rows, options.inputs).bfloat16()
        out = torch.empty(rows, options.outputs, dtype=torch.bfloat16)
        samples: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(options.repeat + 1):
            for name, products in made.items():
                samples[name].append(_seconds(products, x, out))
        chosen = min if options.best else statistics.median
        kept = [chosen(each[1:]) for each in samples.values()]
        flops = 2 * rows * options.inputs * options.outputs
        cells = [f"{seconds * 1e3:9.3f} ms {flops / seconds / 1e9:6.0f} GF" for seconds in kept]
        print(f"{rows:>5}  " + "".join(f"{cell:>22}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
