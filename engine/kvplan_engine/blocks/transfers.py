"""Blocks to be copied before a step: the list that the scheduler writes and the block mover carries out. No torch.

The list has the order of the scheduler's decisions, and every transfer is valid at its place in it: what it reads has
been written by an earlier step or an earlier transfer, and what it overwrites nobody needs any more. All transfers come
before the step's own writes. So blocks and slots may be freed and taken again within one step:

    running sequence 5 is swapped out   ToHost(block 7 -> slot 0)     block 7 is free
    sequence 2 grows into block 7       (the step writes it)
    running sequence 4 is swapped out   ToHost(block 3 -> slot 1)     block 3 is free
    sample 1 splits from sample 0       BlockCopy(block 9 -> block 3)

The mover joins neighbours of one kind into one copy if none of them touches what another one writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan_engine.blocks.block_pool import BlockHash
from kvplan_engine.blocks.block_table import BlockCopy


@dataclass(frozen=True, slots=True)
class ToHost:
    """Pool block ``block`` -> host slot ``slot``."""

    block: int
    slot: int


@dataclass(frozen=True, slots=True)
class FromHost:
    """Host slot ``slot`` -> pool block ``block``."""

    slot: int
    block: int


@dataclass(frozen=True, slots=True)
class ToDisk:
    """Host slots ``indices`` if ``from_host``, otherwise pool blocks, one behind the other -> file ``block_hash``."""

    indices: tuple[int, ...]
    from_host: bool
    block_hash: BlockHash


@dataclass(frozen=True, slots=True)
class FromDisk:
    """``payload``, already read from disk and checked -> pool block ``block``."""

    payload: bytearray | memoryview
    block: int


@dataclass(frozen=True, slots=True)
class SwappedGroup:
    """What a swapped sequence has in one group: the slots of its bundles, from logical block ``first`` on."""

    first: int
    slots: list[int]


Transfer = BlockCopy | ToHost | FromHost | ToDisk | FromDisk


class TransferLog:
    """Collects the transfers with which the next step begins."""

    def __init__(self) -> None:
        self.pending: list[Transfer] = []

    def add(self, transfer: Transfer) -> None:
        self.pending.append(transfer)

    def take(self) -> list[Transfer]:
        """Return all of them; the log is empty afterwards."""
        taken, self.pending = self.pending, []
        return taken
