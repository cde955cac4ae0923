"""Layers that keep and drop the same tokens, and how many blocks of the pool they take for one sequence.

The rule is ARCHITECTURE.md's ("The KV layout"): for each logical block of tokens that it keeps, a sequence holds one
*bundle* of ``width`` blocks in each group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

KeptKind = Literal["full", "window", "chunk", "state"]
KEPT_KINDS: tuple[KeptKind, ...] = ("full", "window", "chunk", "state")
"""In the order of the groups of a layout."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Which tokens a layer keeps: all, the last ``tokens``, those of the query's chunk of ``tokens``, or a state."""

    kind: KeptKind
    tokens: int | None = None

    def first_needed(self, num_computed: int) -> int:
        """The first token that the one after ``num_computed`` others still sees."""
        if self.kind == "window" and self.tokens:
            return max(0, num_computed - self.tokens + 1)
        if self.kind == "chunk" and self.tokens:
            return num_computed // self.tokens * self.tokens
        return 0


FULL = Kept("full")
STATE = Kept("state")


@dataclass(frozen=True, slots=True)
class KvGroup:
    """``width``: blocks of the pool in a bundle. ``unit_bytes``: what lies in these, without what stays empty."""

    kept: Kept
    width: int
    unit_bytes: int

    def most_bundles(self, num_tokens: int, in_flight: int, block_size: int) -> int:
        """Bundles that a sequence comes to hold on its way to ``num_tokens``, at most ``in_flight`` of them a step.

        A window's last tokens and those in flight may begin anywhere in a bundle.
        """
        if self.kept.kind == "state":
            return 1
        bundles = -(-num_tokens // block_size)
        if self.kept.tokens is None:
            return bundles
        return min(bundles, -(-(self.kept.tokens + in_flight - 2) // block_size) + 1)


def blocks_for(groups: Iterable[KvGroup], block_size: int, num_tokens: int, in_flight: int = 1) -> int:
    """Blocks of the pool that one sequence comes to hold on its way to ``num_tokens``, in all ``groups``."""
    return sum(group.width * group.most_bundles(num_tokens, in_flight, block_size) for group in groups)
