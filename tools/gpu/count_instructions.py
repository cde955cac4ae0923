"""What a warp issues in a round of a kernel's main loop, read in its disassembly (``kernel_floor.py``).

The main loop is the one with most tensor-core products. Of the ways through it the one with all copies and products and
the fewest other instructions counts: in attention a tile of KV that every row sees whole. Loops within it count as
often as their copies to shared memory, or their products, make up a round's. Needs nvdisasm: package
nvidia-cuda-nvdisasm, or a toolkit.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_LABEL = re.compile(r"^(\.L_\w+):")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_PRODUCTS = ("HMMA", "HGMMA", "QMMA")
_WORK = (*_PRODUCTS, "LDGSTS")
"""What every round has: its path takes all of it."""


@dataclass(slots=True)
class Block:
    """Instructions without a branch between them. names: of each; targets: blocks that may follow."""

    names: list[str] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)

    def count(self, *kinds: str) -> int:
        return sum(name.split(".")[0] in kinds for name in self.names)


def disassemble(image: bytes) -> list[str] | None:
    """nvdisasm's lines; None without nvdisasm."""
    program = shutil.which("nvdisasm")
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(image)
        return subprocess.run([program, "-c", path], capture_output=True, text=True, check=True).stdout.splitlines()


def blocks_of(listing: Iterable[str]) -> list[Block]:
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
    for number, name in pending:
        blocks[number].targets.append(labels[name])
    return blocks


def _reaching(blocks: list[Block], end: int, header: int) -> set[int]:
    """The blocks from which ``end`` is reached without ``header``, and both."""
    seen, waiting = {header}, [end]
    while waiting:
        number = waiting.pop()
        if number not in seen:
            seen.add(number)
            waiting += [other for other, block in enumerate(blocks) if number in block.targets]
    return seen


def _loops(blocks: list[Block]) -> list[set[int]]:
    """The blocks of each natural loop: branches that go back to where every way to them has been."""
    found: dict[int, set[int]] = {}
    for number, block in enumerate(blocks):
        for target in block.targets:
            body = _reaching(blocks, number, target) if target <= number else {0}
            if target == 0 or 0 not in body:
                found.setdefault(target, set()).update(body)
    return list(found.values())


def round_of(blocks: list[Block], copies: int = 0, products: int = 0) -> Counter[str]:
    """Instructions of one round of the main loop, by name. copies: 16 bytes a lane each, of K or of V in a round.

    products: of a round, where a loop within it has some of them.
    """
    loops = _loops(blocks)
    main = max(loops, key=lambda loop: sum(blocks[number].count(*_PRODUCTS) for number in loop))
    times, rest = {}, products - sum(blocks[number].count(*_PRODUCTS) for number in main)
    for loop in (each for each in loops if each < main):
        copied = sum(blocks[number].count("LDGSTS") for number in loop)
        multiplied = sum(blocks[number].count(*_PRODUCTS) for number in loop)
        if copied:
            times |= dict.fromkeys(loop, max(1, copies // copied))
        elif multiplied and rest > 0:
            times |= dict.fromkeys(loop, 1 + rest // multiplied)
    header = min(main)
    best: dict[int, tuple[int, int, list[int]]] = {header: (0, 0, [])}
    ways = []
    for number in sorted(main):  # branches go forward but for those of loops
        if number not in best:
            continue
        work, cost, path = best[number]
        work, cost = work + blocks[number].count(*_WORK), cost - len(blocks[number].names) * times.get(number, 1)
        path = [*path, number]
        for target in blocks[number].targets:
            if target == header:
                ways.append((work, cost, path))
            elif target in main and target > number and best.get(target, (-1, 0, []))[:2] < (work, cost):
                best[target] = (work, cost, path)
    counts: Counter[str] = Counter()
    for number in max(ways)[2]:
        for name in blocks[number].names:
            counts[name.split(".")[0]] += times.get(number, 1)
    return counts
