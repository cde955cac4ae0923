"""Units into blocks of one size: in order, and one that does not fit begins the next block. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeptPart:
    """One part of a layer: ``num_units`` units of ``unit_bytes`` each. A page of tokens is one unit."""

    key: tuple[int, str]
    num_units: int
    unit_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.num_units * self.unit_bytes


@dataclass(frozen=True, slots=True)
class Packing:
    """width: how many blocks are filled. starts: (block, offset in bytes) of each part's first unit."""

    width: int
    starts: tuple[tuple[int, int], ...]


def pack(parts: Sequence[KeptPart], block_bytes: int, alignment: int) -> Packing:
    """Fill blocks of ``block_bytes`` with ``parts``, which each begin at a multiple of ``alignment`` bytes."""
    block, offset = 0, 0
    starts = []
    for part in parts:
        size = part.unit_bytes
        offset = rounded_up(offset, alignment)
        if offset + size > block_bytes:
            block, offset = block + 1, 0
        starts.append((block, offset))
        num_behind = part.num_units - (block_bytes - offset) // size  # those that this block has no room for
        if num_behind <= 0:
            offset += part.num_units * size
            continue
        num_more = -(-num_behind // (block_bytes // size))
        block += num_more
        offset = (num_behind - (num_more - 1) * (block_bytes // size)) * size
    return Packing(block + 1, tuple(starts))


def packed_bytes(parts: Sequence[KeptPart], alignment: int) -> int:
    """The size of the smallest block that all ``parts`` fit into."""
    size = 0
    for part in parts:
        size = rounded_up(size, alignment) + part.num_bytes
    return rounded_up(size, alignment)


def rounded_up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
