"""Counts the instructions that a warp issues in each round of a kernel's main loop, from its disassembly:

    python tools/gpu/count_instructions.py [sm_90]

In attention a round is a tile of KV that every row sees whole: of the ways through the loop the one with all copies
and products and the fewest other instructions. Loops within it count as often as they run to make the copies of a tile.
In a product of few rows it is a step, or two. Bytes are those that a warp copies in a round. Needs NVRTC (package
nvidia-cuda-nvrtc-cu12) and nvdisasm (package nvidia-cuda-nvdisasm, or a toolkit); no GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

_LABEL = re.compile(r"^(\.L_\w+):")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_PRODUCTS = ("HMMA", "HGMMA")
_COPIED_BYTES = 32 * 16  # by an LDGSTS of a warp
_WORK = (*_PRODUCTS, "LDGSTS")
"""What every tile has: the path of a round takes all of it."""


@dataclass(slots=True)
class Block:
    """Instructions without a branch between them. names: of each. targets: blocks that may follow."""

    names: list[str] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)

    @property
    def work(self) -> int:
        return sum(name.split(".")[0] in _WORK for name in self.names)


def parse(listing: Iterable[str]) -> list[Block]:
    """The blocks of one function, in the order of their addresses; a loop's first block has a label."""
    blocks, labels, pending = [Block()], {}, []
    for line in listing:
        label, instruction = _LABEL.match(line), _INSTRUCTION.match(line)
        if label:
            if blocks[-1].names:
                blocks[-1].targets.append(len(blocks))
                blocks.append(Block())
            labels[label[1]] = len(blocks) - 1
        elif instruction:
            predicate, name, operands = instruction.groups()
            blocks[-1].names.append(name)
            target = _TARGET.search(operands)
            is_branch = name.startswith("BRA") and target is not None
            if is_branch:
                pending.append((len(blocks) - 1, target[1]))
            if is_branch or name == "EXIT":
                if predicate or (is_branch and operands.strip().startswith(("U", "P", "!", "~"))):
                    blocks[-1].targets.append(len(blocks))
                blocks.append(Block())
    for number, target in pending:
        blocks[number].targets.append(labels[target])
    return blocks


def loops_of(blocks: list[Block]) -> list[set[int]]:
    """The blocks of each natural loop, for branches that go back to where every way to them has been."""
    found: dict[int, set[int]] = {}
    for number, block in enumerate(blocks):
        for target in block.targets:
            if target <= number and (target == 0 or 0 not in _reaching(blocks, number, target)):
                found.setdefault(target, {target}).update(_reaching(blocks, number, target))
    return list(found.values())


def _reaching(blocks: list[Block], end: int, header: int) -> set[int]:
    """The blocks from which ``end`` is reached without ``header``."""
    seen, waiting = {header}, [end]
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        waiting += [other for other, block in enumerate(blocks) if number in block.targets]
    return seen


def round_of(blocks: list[Block], copies: int) -> Counter[str]:
    """Instructions of one round of the loop with most products, by name. copies: of a warp for each tile of K and V."""
    loops = loops_of(blocks)
    main = max(loops, key=lambda loop: sum(name.startswith(_PRODUCTS) for n in loop for name in blocks[n].names))
    inner = [loop for loop in loops if loop < main]
    times = {number: _rounds(blocks, loop, copies) for loop in inner for number in loop}
    header = min(main)
    best: dict[int, tuple[int, int, list[int]]] = {header: (0, 0, [])}
    ways = []
    for number in sorted(main):  # branches go forward but for those of loops
        if number not in best:
            continue
        work, cost, path = best[number]
        work += blocks[number].work
        cost -= len(blocks[number].names) * times.get(number, 1)
        path = [*path, number]
        for target in blocks[number].targets:
            if target == header:
                ways.append((work, cost, path))
            elif target in main and target > number and best.get(target, (-1, 0, []))[:2] < (work, cost):
                best[target] = (work, cost, path)
    path = max(ways)[2]
    counts: Counter[str] = Counter()
    for number in path:
        for name in blocks[number].names:
            counts[name.split(".")[0]] += times.get(number, 1)
    return counts


def _rounds(blocks: list[Block], loop: set[int], copies: int) -> int:
    own = sum(name.startswith("LDGSTS") for number in loop for name in blocks[number].names)
    return max(1, copies // own) if own else 1


def disassemble(image: bytes) -> list[str]:
    """nvdisasm's lines."""
    program = shutil.which("nvdisasm")
    if program is None:
        raise SystemExit("error: no nvdisasm on the PATH; hint: pip install nvidia-cuda-nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(image)
        done = subprocess.run([program, "-c", str(path)], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main(architecture: str) -> None:
    """A row for each kernel of attention and of few rows on tensor cores of Llama's shape; decode with fp8 too.

    Prefill copies fp8 without LDGSTS, so that the rounds of its inner loops would not be known.
    """
    root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root), str(root / "engine"), str(root / "tests" / "engine" / "cuda" / "cases")]
    import torch
    from kernel_matrix import LLAMA, LLAMA_GATED, LLAMA_PLAIN, properties_of

    from kvplan_engine.kernels.cuda.attention.launches import decode_launch, prefill_launch, short_prefill_launch
    from kvplan_engine.kernels.cuda.launching.nvrtc import load_nvrtc
    from kvplan_engine.kernels.cuda.products.skinny_launch import skinny_launch

    nvrtc = load_nvrtc()
    number = int(architecture.removeprefix("sm_").rstrip("a"))
    properties = properties_of((number // 10, number % 10))
    float8 = replace(LLAMA, cache=torch.float8_e4m3fn)
    launches = {
        "prefill bfloat16": prefill_launch(LLAMA, properties),
        "prefill wgmma": prefill_launch(LLAMA, properties, wgmma=True),
        "prefill, one warp": short_prefill_launch(LLAMA, properties),
        "decode bfloat16": decode_launch(LLAMA, properties),
        "decode fp8": decode_launch(float8, properties),
        "decode, 16 heads": decode_launch(replace(LLAMA, num_query_heads=16 * LLAMA.num_kv_heads), properties),
        "product, 8 rows": skinny_launch(LLAMA_PLAIN, 8, properties),
        "product, 16 rows": skinny_launch(LLAMA_PLAIN, 16, properties),
        "gated, 8 rows": skinny_launch(LLAMA_GATED, 8, properties),
    }
    for name, launch in launches.items():
        image = nvrtc.compile(launch.variant, launch.variant.only_for or architecture).image
        counts = round_of(parse(disassemble(image)), copies=8)
        common = ", ".join(f"{count} {operation}" for operation, count in counts.most_common(12))
        copied = counts["LDGSTS"] * _COPIED_BYTES
        print(f"{name:18s} {counts.total():5d}   {copied:6,d} bytes   {common}")


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["sm_90"])
