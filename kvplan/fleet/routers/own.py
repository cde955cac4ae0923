"""The router of ``kvplan serve --data-parallel-size`` (docs/replicas.md): what a request costs there, in prompt tokens.

    2 x (tokens of the prompt that the replica would compute)
    + tokens that wait there to be computed
    + 32 x (sequences there + 3 x those that would wait, where this one cannot run at once)

Those that would wait are this one and all that wait, where the replica has no seat or no free blocks for it. It
remembers the prompts that it sent to each replica, as many blocks as a pool has, and hears of no eviction. Of equal
costs it takes the replica with the fewest sequences, then the one that was sent the fewest tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final

from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.interface import ReplicaView
from kvplan.fleet.routers.prefixes import PrefixMemory

COMPUTED_WEIGHT: Final = 2
SEQUENCE_TOKENS: Final = 32
WAITING_WEIGHT: Final = 4


class OwnRouter:
    """block_size, num_blocks, num_seats: those of a replica."""

    is_blind = False

    def __init__(self, block_size: int, num_blocks: int, num_seats: int) -> None:
        self._block_size, self._pool_tokens, self._num_seats = block_size, num_blocks * block_size, num_seats
        self._sent = defaultdict[int, PrefixMemory](partial(PrefixMemory, self._pool_tokens))

    def choose(self, request: FleetRequest, replicas: Sequence[ReplicaView]) -> int:
        """See ``Router``."""
        keys = [self._key(request, each) for each in replicas]
        chosen = keys.index(min(keys))
        self._sent[replicas[chosen].index].remember(request)
        return chosen

    def _key(self, request: FleetRequest, replica: ReplicaView) -> tuple[int, int, int]:
        """(cost, sequences there, tokens sent there)."""
        memory, size, prompt = self._sent[replica.index], self._block_size, request.num_prompt_tokens
        new = prompt - min(memory.match(request), prompt - 1) // size * size
        sequences = replica.num_running + replica.num_waiting
        free = (1 - replica.kv_usage) * self._pool_tokens
        has_room = sequences < self._num_seats and replica.num_waiting_tokens + new <= free
        waiting = 0 if has_room else replica.num_waiting + 1
        load = sequences + (WAITING_WEIGHT - 1) * waiting
        cost = COMPUTED_WEIGHT * new + replica.num_waiting_tokens + SEQUENCE_TOKENS * load
        return cost, sequences, memory.num_tokens
