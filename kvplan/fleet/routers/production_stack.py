"""vLLM's production stack, --routing-logic prefixaware: a replica that was sent the longest beginning of the prompt.

vllm-project/production-stack, src/vllm_router/routers/routing_logic.py (PrefixAwareRouter, at 008a23bd) and
src/vllm_router/prefix/hashtrie.py: a trie of chunks of 128 characters, about 32 tokens, from which nothing is ever
evicted. Of several replicas one is drawn, and of all where nobody was sent the first chunk. It looks at no load.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.interface import ReplicaView
from kvplan.fleet.routers.prefixes import PrefixMemory

CHUNK_TOKENS: Final = 32


class PrefixAware:
    """The trie."""

    is_blind = False

    def __init__(self) -> None:
        self._sent: defaultdict[int, PrefixMemory] = defaultdict(PrefixMemory)
        self._rng = random.Random(0)

    def choose(self, request: FleetRequest, replicas: Sequence[ReplicaView]) -> int:
        """See ``Router``."""
        found = [self._sent[each.index].match(request) // CHUNK_TOKENS for each in replicas]
        longest = max(found)
        chosen = self._rng.choice([place for place, each in enumerate(found) if each == longest])
        self._sent[replicas[chosen].index].remember(request)
        return chosen
