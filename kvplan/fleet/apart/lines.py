"""Requests in line for blocks of one replica, and the blocks that are promised to those that were let in.

A replica counts the blocks of what it runs. Between the moment when blocks are promised to a request and the moment
when it runs there, they are counted here: while its KV is on its way, and while it waits for a seat.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from kvplan.fleet.replicas.replica import Replica
from kvplan.fleet.replicas.setup import CacheGroup, PoolLayout

_ROUNDED: Final = 1e-6
"""Of a block: what a share of the pool in use loses."""


def blocks_of(layout: PoolLayout, num_tokens: int) -> int:
    """Blocks that a request of so many computed tokens holds."""
    return sum(group.count * _group_blocks(group, num_tokens) for group in layout.groups)


def _group_blocks(group: CacheGroup, num_tokens: int) -> int:
    if group.kind in ("state", "fixed"):
        return 1
    blocks = -(-num_tokens // group.block_size)
    if group.window_tokens is None:
        return blocks
    return min(blocks, -(-group.window_tokens // group.block_size) + 1)


class Waiting(NamedTuple):
    """A request in line, by its number, and the blocks it needs."""

    number: int
    num_blocks: int


class DecodeLine:
    """The line before a decode replica: first come, first served, as vLLM's and SGLang's queues are."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._line: deque[Waiting] = deque()
        self._on_the_way: dict[int, int] = {}
        self._delivered: deque[int] = deque()

    @property
    def num_in_hand(self) -> int:
        """Requests in line, on their way, and in the replica."""
        return len(self._line) + len(self._on_the_way) + self.replica.num_waiting + self.replica.num_running

    def join(self, number: int, num_blocks: int) -> None:
        """A request comes to the end of the line."""
        self._line.append(Waiting(number, num_blocks))

    def let_in(self) -> list[int]:
        """Promise blocks to the first in line while they are free. Return their numbers."""
        found: list[int] = []
        while self._line and self._fits(self._line[0].num_blocks):
            number, blocks = self._line.popleft()
            self._on_the_way[number] = blocks
            found.append(number)
        return found

    def delivered(self, number: int) -> None:
        """The replica has the request: its blocks are promised until it runs there."""
        self._delivered.append(self._on_the_way.pop(number))

    def _fits(self, num_blocks: int) -> bool:
        replica = self.replica
        while len(self._delivered) > replica.num_waiting:
            self._delivered.popleft()
        promised = sum(self._on_the_way.values()) + sum(self._delivered)
        if not promised and not replica.num_running:
            return True
        free = replica.setup.pool.num_blocks * (1 - replica.kv_usage)
        return num_blocks + promised <= free + _ROUNDED


class PrefillLine:
    """The line before a prefill replica, which keeps the blocks of prompts that were read until they were moved."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._line: deque[Waiting] = deque()
        self._held: dict[int, int] = {}
        self._in_hand = 0
        self._blocks: dict[int, int] = {}

    def join(self, number: int, num_blocks: int) -> None:
        """A request comes to the end of the line."""
        self._line.append(Waiting(number, num_blocks))

    def let_in(self) -> list[int]:
        """Return the numbers of those that the replica may have: all, unless blocks that wait to be moved lack."""
        found = []
        while self._line and self._fits(self._line[0].num_blocks):
            number, blocks = self._line.popleft()
            self._blocks[number] = blocks
            self._in_hand += blocks
            found.append(number)
        return found

    def was_read(self, number: int) -> None:
        """The prompt has been read: its blocks stay until ``was_moved``."""
        self._held[number] = blocks = self._blocks.pop(number)
        self._in_hand -= blocks

    def was_moved(self, number: int) -> None:
        """The blocks are free to be evicted."""
        del self._held[number]

    def _fits(self, num_blocks: int) -> bool:
        held = sum(self._held.values())
        return not held or num_blocks + held + self._in_hand <= self.replica.setup.pool.num_blocks
