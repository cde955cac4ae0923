"""SGLang's router, policy cache_aware: the replica that was sent the longest beginning of the prompt, within limits.

sgl-project/sglang, sgl-model-gateway/src/policies/cache_aware.rs and tree.rs at 053b63ff, with the values of its
command line (bindings/python/src/sglang_router/router_args.py): one tree of all prompts that were routed says who was
sent what, in characters; it hears of no eviction.

* Requests in flight differ by more than 64, and the most are more than 1.5 x the fewest: the replica with the fewest.
* More than 0.3 of the prompt is in the tree: the replica that was sent its longest beginning, of several the last one.
* Otherwise the replica with the fewest requests in flight.

The chosen one has the prompt in the tree from then on. Every 120 s a replica's share of the tree is cut to 2**26
characters, about four to a token, the longest unused first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.interface import ReplicaView
from kvplan.fleet.routers.prefixes import PrefixMemory

CACHE_THRESHOLD: Final = 0.3
BALANCE_ABS_THRESHOLD: Final = 64
BALANCE_REL_THRESHOLD: Final = 1.5
EVICTION_SECONDS: Final = 120.0
MOST_TREE_TOKENS: Final = 2**26 // 4


class CacheAware:
    """The tree, and the loads that it is given up for."""

    is_blind = False

    def __init__(self) -> None:
        self._sent: defaultdict[int, PrefixMemory] = defaultdict(PrefixMemory)
        self._turns: dict[int, int] = {}
        self._num_routed = 0
        self._evicted_at = 0.0

    def choose(self, request: FleetRequest, replicas: Sequence[ReplicaView]) -> int:
        """See ``Router``."""
        if request.sent - self._evicted_at >= EVICTION_SECONDS:
            self._evicted_at = request.sent
            for each in self._sent.values():
                each.shrink(MOST_TREE_TOKENS)
        chosen = self._chosen(request, replicas)
        index = replicas[chosen].index
        self._sent[index].remember(request)
        self._num_routed += 1
        self._turns[index] = self._num_routed
        return chosen

    def _chosen(self, request: FleetRequest, replicas: Sequence[ReplicaView]) -> int:
        loads = [each.num_running + each.num_waiting for each in replicas]
        least, most = min(loads), max(loads)
        if most - least > BALANCE_ABS_THRESHOLD and most > BALANCE_REL_THRESHOLD * least:
            return loads.index(least)
        found = [self._sent[each.index].match(request) for each in replicas]
        longest = max(found)
        if longest <= CACHE_THRESHOLD * request.num_prompt_tokens:
            return loads.index(least)
        alike = (place for place, each in enumerate(found) if each == longest)
        return max(alike, key=lambda place: self._turns.get(replicas[place].index, 0))
