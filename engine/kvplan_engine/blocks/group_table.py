"""What a sequence holds, or can start from, in one group of layers. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.layout import KvGroup


class FoundBundles(NamedTuple):
    """What a sequence starts from in one group: the bundles from logical block ``first`` on.

    None: the content is not in the pool but in a tier or in swap space.
    """

    first: int
    bundles: list[int | None]


class GroupTable:
    """What a sequence holds in one group: ``bundles``, the first of them that of logical block ``first``."""

    __slots__ = ("bundles", "first", "group")

    def __init__(self, group: KvGroup, bundles: list[int], first: int = 0) -> None:
        self.group = group
        self.bundles = bundles
        self.first = first


def num_blocks_to_start(pool: BlockPool, found: Sequence[FoundBundles], num_held: int) -> int:
    """How many free blocks a sequence uses up that adopts ``found`` and then holds ``num_held`` blocks in all.

    A state that somebody uses does not help: it will be copied.
    """
    number = num_held
    for group, each in zip(pool.layout.groups, found, strict=True):
        if each.bundles and not group.is_state:
            in_use = sum(bundle is not None and pool.reference_count(bundle) > 0 for bundle in each.bundles)
            number -= group.width * in_use
    return number
