"""Blocks that change place before a step: the list that the scheduler writes and the block mover carries out. No torch.

The order of the list is the order of the scheduler's decisions, and every transfer is right at its place in it: what
it reads has been written by an earlier step or by an earlier transfer, and what it overwrites nobody needs any more.
All of them come before the step's own writes. So blocks and slots may be freed and taken again within one step:

    running sequence 5 is swapped out   ToHost(block 7 -> slot 0)     block 7 is free
    sequence 2 grows into block 7       (the step writes it)
    running sequence 4 is swapped out   ToHost(block 3 -> slot 1)     block 3 is free
    sample 1 splits from sample 0       BlockCopy(block 9 -> block 3)

The mover joins neighbours of one kind into one copy where none of them touches what another one writes.
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
    """Store content under ``block_hash``: of host slot ``index`` when ``from_host``, else of pool block ``index``."""

    index: int
    from_host: bool
    block_hash: BlockHash


@dataclass(frozen=True, slots=True)
class FromDisk:
    """``payload``, read from disk and checked already, -> pool block ``block``."""

    payload: bytearray
    block: int


Transfer = BlockCopy | ToHost | FromHost | ToDisk | FromDisk


class TransferLog:
    """Collects the transfers that the next step begins with."""

    def __init__(self) -> None:
        self.pending: list[Transfer] = []

    def add(self, transfer: Transfer) -> None:
        self.pending.append(transfer)

    def take(self) -> list[Transfer]:
        """Hand all of them over."""
        taken, self.pending = self.pending, []
        return taken
