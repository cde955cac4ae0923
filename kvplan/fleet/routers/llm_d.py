"""llm-d's endpoint picker: the sum of weighted scores, 0 to 1, for what a replica has cached, its queue and its pool.

Scores and picker are those of the Gateway API inference extension, which llm-d's router is built on
(kubernetes-sigs/gateway-api-inference-extension, pkg/epp/scheduling/framework/plugins: multi/prefix/plugin.go,
scorer/queue.go, scorer/kvcache_utilization.go, picker/max_score_picker.go at 02308be3):

queue-scorer                   (longest queue - queue) / (longest - shortest); 1 for all where they are equally long
kv-cache-utilization-scorer    1 - the share of the pool's blocks that is in use
prefix-cache-scorer            share of the prompt's first 256 blocks that the picker sent there before; it has its own
                               memory of as many blocks as the engine reports, and hears of no eviction
precise-prefix-cache-scorer    blocks that the engine has by its own KV events, from the least to the most of all
                               replicas (llm-d/llm-d-inference-scheduler, precise-prefix-cache-scorer, utils.go)

Of equal sums one is drawn. Weights of the first: queue 2, KV 2, prefix 3 (config/charts/epplib/templates/_config.yaml
at 74621d38); of the second: prefix 2, KV 1, queue 1 (deploy/config/epp-precise-prefix-cache-config.yaml at 17d999e0).
The picker reads metrics every 50 ms or so; here they are those of the moment.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.interface import ReplicaView
from kvplan.fleet.routers.prefixes import PrefixMemory

MOST_PREFIX_BLOCKS: Final = 256
"""DefaultMaxPrefixBlocks: two prompts that agree so far are the same to the scorer."""


@dataclass(frozen=True, slots=True)
class ScoreWeights:
    """How much each score counts."""

    prefix: float
    queue: float
    kv_usage: float


APPROXIMATE_WEIGHTS: Final = ScoreWeights(prefix=3, queue=2, kv_usage=2)
PRECISE_WEIGHTS: Final = ScoreWeights(prefix=2, queue=1, kv_usage=1)


class LlmD:
    """The picker with its own memory of prompts, as the charts set it up."""

    is_blind = False

    def __init__(self, block_size: int, num_blocks: int, weights: ScoreWeights = APPROXIMATE_WEIGHTS) -> None:
        self._block_size, self._weights = block_size, weights
        sizes = (num_blocks * block_size, MOST_PREFIX_BLOCKS * block_size)
        self._memories = defaultdict[int, PrefixMemory](partial(PrefixMemory, *sizes))
        self._rng = random.Random(0)

    def choose(self, request: FleetRequest, replicas: Sequence[ReplicaView]) -> int:
        """See ``Router``."""
        chosen = _pick(self._prefix_scores(request, replicas), replicas, self._weights, self._rng)
        self._memories[replicas[chosen].index].remember(request)
        return chosen

    def _prefix_scores(self, request: FleetRequest, replicas: Sequence[ReplicaView]) -> list[float]:
        blocks = min(request.num_prompt_tokens // self._block_size, MOST_PREFIX_BLOCKS)
        if not blocks:
            return [0.0] * len(replicas)
        found = (self._memories[each.index].match(request) // self._block_size for each in replicas)
        return [min(each, blocks) / blocks for each in found]


class LlmDPrecise:
    """The picker that hears of each block that an engine stores or evicts."""

    is_blind = False

    def __init__(self, weights: ScoreWeights = PRECISE_WEIGHTS) -> None:
        self._weights, self._rng = weights, random.Random(0)

    def choose(self, request: FleetRequest, replicas: Sequence[ReplicaView]) -> int:
        """See ``Router``."""
        found = [each.match(request) for each in replicas]
        low, high = min(found), max(found)
        scores = [(each - low) / (high - low) if high > low else 1.0 for each in found]
        return _pick(scores, replicas, self._weights, self._rng)


def _pick(prefixes: Sequence[float], replicas: Sequence[ReplicaView], weights: ScoreWeights, rng: random.Random) -> int:
    queues = [each.num_waiting for each in replicas]
    shortest, longest = min(queues), max(queues)
    spread = longest - shortest
    sums = [
        weights.prefix * prefix
        + weights.queue * ((longest - queue) / spread if spread else 1.0)
        + weights.kv_usage * (1 - replica.kv_usage)
        for prefix, queue, replica in zip(prefixes, queues, replicas, strict=True)
    ]
    best = max(sums)
    alike = [place for place, each in enumerate(sums) if each == best]
    return alike[0] if len(alike) == 1 else rng.choice(alike)
