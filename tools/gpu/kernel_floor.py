"""The least time that each CUDA kernel can take on a GPU, and beside it what somebody measured.

    python tools/gpu/kernel_floor.py [--gpu h100-sxm] [--measured rows.jsonl]

A kernel's floor is the longest of three times, and its launches: bytes that must move at the data sheet's bandwidth,
products at its tensor cores' rate, and warp instructions at four a clock and multiprocessor (CUDA C++ Programming
Guide, "Multiprocessor Level"). Instructions are counted in the disassembly for the GPU's architecture, and left out
without nvdisasm (package nvidia-cuda-nvdisasm); what lies before and behind a kernel's loop is not counted. A launch in
a captured graph takes half a microsecond (V100: 3.4 us with a kernel of 2.9, developer.nvidia.com/blog/cuda-graphs).
Needs no GPU. --measured: the file that `kvplan doctor --measure` writes; its GPU, shapes and medians.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(ROOT), str(ROOT / "engine")]
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "engine" / "cases"))

import kernel_matrix as cases
import torch

from count_instructions import blocks_of, disassemble, round_of
from kvplan.catalog.devices.gpu_profile import GpuProfile
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.errors import KvplanError, UsageError
from kvplan_engine.kernels.cuda import attention, mixtures
from kvplan_engine.kernels.cuda.launching.nvrtc import load_nvrtc
from kvplan_engine.kernels.cuda.launching.runtime import DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant
from kvplan_engine.kernels.cuda.products.float8 import float8_launch
from kvplan_engine.kernels.cuda.products.quantised import FEW_ROWS, quantised_launch
from kvplan_engine.kernels.cuda.products.skinny import MOST_ROWS, SkinnyShape, skinny_launch
from kvplan_engine.measuring import attention as decoding
from kvplan_engine.measuring import formats, operations, prefill

LAUNCH_SECONDS: Final = 0.5e-6
_SCHEDULERS: Final = 4
_COPY_BYTES: Final = 32 * 16  # of a warp's LDGSTS, or LDG of vectors
# Of one warp: m16n8k16, m64n128k16 by four warps, m16n8k32.
_PRODUCT_FLOPS: Final = {"HMMA": 2 * 16 * 8 * 16, "HGMMA": 2 * 64 * 128 * 16 // 4, "QMMA": 2 * 16 * 8 * 32}


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel in one shape, as a row of `kvplan doctor --measure` names them. moved: bytes that the memory must
    bring and take; flops: of the tensor cores.

    loop: the kernel whose main loop does it; ``amount`` bytes or operations of ``unit`` instructions pass through it.
    copies, products: of ``round_of``. dtype: of what tensor cores multiply.
    """

    section: str
    name: str
    shape: dict[str, Any]
    moved: float
    flops: float = 0.0
    loop: KernelVariant | None = None
    unit: str = "LDGSTS"
    amount: float = 0.0
    copies: int = 0
    products: int = 0
    launches: int = 1
    dtype: str = "bfloat16"


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds that a kernel cannot fall below, each by itself. issue: None where nobody counted instructions."""

    memory: float
    tensor: float
    issue: float | None
    launch: float

    @property
    def seconds(self) -> float:
        return max(self.memory, self.tensor, self.issue or 0.0) + self.launch

    @property
    def bound(self) -> str:
        times = {"memory": self.memory, "tensor cores": self.tensor, "issue": self.issue or 0.0, "launch": self.launch}
        return max(times, key=lambda name: times[name])


def issue_rate(gpu: GpuProfile) -> float:
    """Warp instructions a second; the clock is that of the data sheet's float32: two a core and clock."""
    cores = 64 if gpu.compute_capability in ("7.0", "7.5", "8.0") else 128
    return gpu.dense_flops["float32"] / (2 * cores) * _SCHEDULERS


def instructions(work: Work, counts: Counter[str]) -> float:
    """Warp instructions of all of ``work``; counts: those of a round of its loop."""
    return work.amount / (counts[work.unit] * _PRODUCT_FLOPS.get(work.unit, _COPY_BYTES)) * counts.total()


def floor_of(work: Work, gpu: GpuProfile, counts: Counter[str] | None) -> Floor:
    """Seconds that ``work`` cannot fall below on ``gpu``. counts: instructions of a round of its loop, if counted."""
    issue = None if counts is None else instructions(work, counts) / issue_rate(gpu)
    memory = work.moved / gpu.memory_bandwidth_bytes_per_second
    return Floor(memory, work.flops / gpu.dense_flops[work.dtype], issue, work.launches * LAUNCH_SECONDS)


# What is measured, and what else has a loop of tensor cores.


def every_work(properties: DeviceProperties) -> list[Work]:
    """Attention, products, operations; latent attention is not measured yet."""
    attended = [*_decode(properties), *_prefill(properties)]
    multiplied = [*_products(properties), *_formats(properties), *_experts(properties)]
    return [*attended, *multiplied, *_operations()]


def _shape_of(heads: decoding.ModelHeads, cache: torch.dtype = torch.bfloat16, block_size: int = 16) -> Any:
    return attention.AttentionShape(torch.bfloat16, cache, heads.size, block_size, heads.query, heads.kv)


def _decode(properties: DeviceProperties) -> Iterable[Work]:
    for shape in decoding.DECODE_SHAPES + decoding.SHARED_SHAPES:
        heads, is_shared = shape.heads, shape in decoding.SHARED_SHAPES
        token = 2 * heads.kv * heads.size * shape.cache.itemsize
        moved = (sum(shape.lengths) - (shape.batch - 1) * shape.shared) * token
        launch = attention.decode_launch(_shape_of(heads, shape.cache, shape.block_size), properties)
        context = f"uneven, {shape.context} in the mean" if shape.is_uneven else shape.context
        named = {"model": heads.model, "batch": shape.batch, "context": context, "shared": shape.shared}
        named |= {"block_size": shape.block_size, "cache": str(shape.cache).removeprefix("torch.")}
        if shape.layers is not None:
            continue  # the same, in another pool
        copies = 16 * heads.size * shape.cache.itemsize // _COPY_BYTES  # decode_mma.cu: tiles of 16 tokens
        name = "decode attention" + " of shared prefixes" * is_shared
        loop = None if is_shared else launch.variant  # two kernels
        yield Work("decode", name, named, moved, loop=loop, amount=moved, copies=copies, launches=1 + is_shared)
    latent = attention.AttentionShape(*[torch.bfloat16] * 2, 576, 16, 128, 1, other_value_size=512, values_in_keys=True)
    named, moved = {"model": "deepseek-v3", "batch": 64, "context": 4096}, 64 * 4096 * 576 * 2
    launch, flops = attention.decode_launch(latent, properties), 2.0 * 64 * 4096 * 128 * (576 + 512)
    products = 64 * 32 * (576 + 512) // (launch.threads // 32 * 16 * 8 * 16)  # latent_mma.cu: ROWS, KV_TILE
    work = Work("decode", "latent attention", named, moved, flops, launch.variant, "HMMA", flops, products=products)
    yield work if attention.uses_latent_kernel(latent, properties) else replace(work, loop=None)


def _prefill(properties: DeviceProperties) -> Iterable[Work]:
    heads, shape = decoding.LLAMA, _shape_of(decoding.LLAMA)
    short = attention.short_prefill_launch(shape, properties)
    usual, groups = attention.prefill_launch(shape, properties), attention.prefill_launch(shape, properties, wgmma=True)
    for one in prefill.SHAPES + prefill.SHORT_SHAPES:
        is_few = one in prefill.SHORT_SHAPES
        rows = one.new_tokens * heads.query * heads.size * 2
        moved = one.batch * (2 * rows + 2 * (one.prefix + one.new_tokens) * heads.kv * heads.size * 2)
        flops = 4.0 * heads.query * heads.size * one.batch * one.visible_pairs
        is_short = short is not None and one.new_tokens * shape.group <= short.tile_rows
        launch = short if short is not None and is_short else usual
        named = {"model": heads.model, **one._asdict()}
        name = "prefill attention" + ", few queries behind a long prefix" * is_few
        copies = 64 * heads.size * 2 * 32 // (launch.threads * _COPY_BYTES)  # tiles of 64 tokens, shared by the warps
        yield Work("prefill", name, named, moved, flops, launch.variant, "HMMA", flops, copies)
        if groups.variant != usual.variant and not is_few:
            name = "prefill attention of warp groups"
            yield Work("prefill", name, named, moved, flops, groups.variant, "HGMMA", flops)


def _products(properties: DeviceProperties) -> Iterable[Work]:
    for name, (outputs, inputs) in operations.PRODUCTS.items():
        for rows in operations.PRODUCT_ROWS:
            follows = operations.FOLLOWS.get(name)
            activation = follows if follows in operations.ACTIVATIONS else None
            weight, flops = 2.0 * outputs * inputs, 2.0 * rows * outputs * inputs
            moved = weight + 2 * rows * (inputs + outputs // (1 if activation is None else 2))
            named = {"product": name, "outputs": outputs, "inputs": inputs, "rows": rows}
            if rows > MOST_ROWS:
                yield Work("products", "cuBLAS alone", named, moved, flops)
                continue
            shape = SkinnyShape(torch.bfloat16, outputs // (1 if activation is None else 2), inputs, activation)
            loop = skinny_launch(shape, rows, properties).variant
            yield Work("products", "skinny products", named, moved, flops, loop, "LDGSTS", weight)


def _formats(properties: DeviceProperties) -> Iterable[Work]:
    """Weights in few bits. Where no instruction multiplies fp8, halves are multiplied."""
    for name, (bits, outputs, inputs, counts) in formats.CODES.items():
        for rows in counts:
            named = {"outputs": outputs, "inputs": inputs, "rows": rows}
            elements, beside = float(outputs * inputs), 2.0 * rows * (inputs + outputs)
            moved, flops, is_few = elements * bits / 8 + beside, 2.0 * rows * elements, rows <= FEW_ROWS
            widened = Work("formats", name, named, moved + 4 * elements, flops, launches=2)
            if is_few:
                shape = cases.AWQ if name == formats.AWQ else cases.FLOAT8
                loop = quantised_launch(
                    replace(shape, num_outputs=outputs, num_inputs=inputs), rows, properties
                ).variant
                has_loop = "mma" in loop.source
                padded = 2.0 * FEW_ROWS * elements if has_loop else 0.0
                yield Work("formats", name, named, moved, flops, loop if has_loop else None, "HMMA", padded)
            elif name == formats.AWQ:
                yield widened
            else:
                yield replace(widened, name=name + formats.WIDENED)
                if properties.capability >= (8, 9):
                    loop = float8_launch(torch.bfloat16, rows, outputs, properties).variant
                    unit, dtype = ("QMMA", "fp8") if dict(loop.defines)["NATIVE"] else ("HMMA", "bfloat16")
                    yield Work("formats", name, named, moved, flops, loop, unit, flops, dtype=dtype)


def _experts(properties: DeviceProperties) -> Iterable[Work]:
    """The first product of experts: of a decode step, and of a prompt in each size of tiles."""
    up = mixtures.ProductShape(torch.bfloat16, torch.bfloat16, "silu", is_gated=True)
    for model, (experts, top_k, size, hidden) in formats.EXPERTS.items():
        for tokens in formats.EXPERT_TOKENS:
            pairs = tokens * top_k // experts
            chosen = mixtures.product_rows(tokens, pairs, torch.bfloat16, properties)
            for tile in (chosen, 64) if chosen == mixtures.LARGE_ROWS else (chosen,):
                loop = mixtures.product_launch(up, tile, properties).variant
                moved = 2.0 * (2 * experts * size * hidden + experts * pairs * (hidden + size))
                flops = 4.0 * experts * pairs * size * hidden
                padded = 4.0 * experts * -(-pairs // tile) * tile * size * hidden
                named = {"model": model, "tokens": tokens, "rows of a tile": tile}
                yield Work("formats", formats.EXPERTS_UP, named, moved, flops, loop, "HMMA", padded)


def _operations() -> Iterable[Work]:
    heads, (tokens, hidden, ffn, vocab) = decoding.LLAMA, (8192, 4096, 14336, 128256)
    moved = {"add_rms_norm": 4 * tokens * hidden, "silu_and_mul": 3 * tokens * ffn, "argmax_rows": 256 * vocab}
    moved |= {f"sample_rows, {way}": 256 * vocab for way in operations.DRAWS}
    for tokens in (1, 8192):
        moved[f"rotate_and_write_kv of {tokens} tokens"] = 2 * tokens * (heads.query + 2 * heads.kv) * heads.size
    for name, elements in moved.items():
        yield Work("operations", name, {"bytes": 2 * elements}, 2 * elements)


# The table.


def counter(nvrtc: Any, arch: str) -> Callable[[Work], Counter[str] | None]:
    """Counts a work's loop as compiled for ``arch``; None without nvdisasm."""

    @functools.cache
    def count(loop: KernelVariant, copies: int, products: int) -> Counter[str] | None:
        listing = disassemble(nvrtc.compile(loop, loop.only_for or arch).image)
        return None if listing is None else round_of(blocks_of(listing), copies, products)

    return lambda work: None if work.loop is None else count(work.loop, work.copies, work.products)


def measured_seconds(work: Work, rows: Iterable[dict[str, Any]]) -> float | None:
    """The median of the last row of this work; launches that overlap are another figure."""
    found = None
    for row in rows:
        is_it = (row.get("section"), row.get("name")) == (work.section, work.name) and not row["shape"].get("early")
        if is_it and work.shape.items() <= row["shape"].items():
            found = row["median_seconds"]
    return found


def print_table(gpu: GpuProfile, works: list[Work], count: Callable[[Work], Any], rows: list[dict[str, Any]]) -> None:
    """Microseconds; a row for each work."""
    columns = ("kernel", "shape", "MB", "GFLOP", "instructions of a round", "memory", "tensor cores", "issue", "floor")
    columns = (*columns, "bound by", *(("measured", "measured / floor") if rows else ()))
    print(f"{gpu.name}: {gpu.memory_bandwidth_bytes_per_second / 1e12:.2f} TB/s, "
          f"{gpu.dense_flops['bfloat16'] / 1e12:.0f} TFLOP/s, {issue_rate(gpu) / 1e9:.0f} G warp instructions/s; "
          f"times in microseconds\n")  # fmt: skip
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")
    for work in works:
        counts = count(work)
        floor, seconds = floor_of(work, gpu, counts), measured_seconds(work, rows)
        shape = " ".join(f"{name}={value}" for name, value in work.shape.items())
        cells = [work.name, shape, f"{work.moved / 1e6:,.1f}", f"{work.flops / 1e9:,.1f}" if work.flops else ""]
        cells.append("" if counts is None else f"{counts.total()}")
        cells += [_us(floor.memory), _us(floor.tensor), _us(floor.issue), _us(floor.seconds), floor.bound]
        if rows:
            cells += [_us(seconds), "" if seconds is None else f"{seconds / floor.seconds:.2f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


def _us(seconds: float | None) -> str:
    return f"{1e6 * seconds:,.1f}" if seconds else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", help="a name of `kvplan gpus`; default: the measured one, or h100-sxm")
    parser.add_argument("--measured", type=Path, help="rows of kvplan doctor --measure")
    options = parser.parse_args()
    try:
        lines = options.measured.read_text().splitlines() if options.measured else []
        rows = [row for row in map(json.loads, lines) if "median_seconds" in row and not row["dry_run"]]
        if options.measured and not rows:
            raise UsageError(f"{options.measured} has no measured rows", hint="kvplan doctor --measure writes them")
        gpu = find_gpu(options.gpu or (rows[-1]["device"] if rows else "h100-sxm"))
        major, minor = map(int, gpu.compute_capability.split("."))
        if (major, minor) < (8, 0):
            raise UsageError(f"{gpu.name} takes the simple kernels", hint="the model begins at compute capability 8.0")
        properties = cases.properties_of((major, minor))
        nvrtc = load_nvrtc()
    except (KvplanError, CudaKernelError, OSError, ValueError) as error:
        hint = getattr(error, "hint", None)
        print(f"error: {error}" + (f"\nhint: {hint}" if hint else ""), file=sys.stderr)
        return 2
    properties = replace(properties, num_multiprocessors=gpu.multiprocessors)
    count = counter(nvrtc, nvrtc.architecture_for((major, minor)))
    print_table(gpu, every_work(properties), count, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
