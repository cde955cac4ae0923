"""NVIDIA Dynamo's KV router: the replica with the fewest blocks to compute and to decode over.

ai-dynamo/dynamo, lib/kv-router/src/scheduling/selector.rs at 01690d42, with the defaults of config.rs there
(overlap_score_credit 1, prefill_load_scale 1, router_temperature 0):

    cost = prompt tokens still to be computed there, this prompt's that are not cached among them, / block size
         + blocks that its requests hold, with those that this one would add

What is cached it hears from the engine's events, block by block (use_kv_events). Of equal costs one is drawn.

Here a replica's blocks are those that it holds at the moment and those that its waiting prompts will take. Dynamo keeps
its own account instead: of prompts only, and each until its first token (prompt tokens) or its end (blocks). It also
holds requests back while every replica has more than 16 x the token budget to compute, which is not played.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.interface import ReplicaView

OVERLAP_SCORE_CREDIT: Final = 1.0
PREFILL_LOAD_SCALE: Final = 1.0


class KvRouter:
    """block_size, num_blocks: those of a replica's pool."""

    is_blind = False

    def __init__(self, block_size: int, num_blocks: int) -> None:
        self._block_size, self._num_blocks = block_size, num_blocks
        self._rng = random.Random(0)

    def choose(self, request: FleetRequest, replicas: Sequence[ReplicaView]) -> int:
        """See ``Router``."""
        costs = [self._cost(request, each) for each in replicas]
        least = min(costs)
        alike = [place for place, each in enumerate(costs) if each == least]
        return alike[0] if len(alike) == 1 else self._rng.choice(alike)

    def _cost(self, request: FleetRequest, replica: ReplicaView) -> float:
        size, prompt, cached = self._block_size, request.num_prompt_tokens, replica.match(request)
        tokens = replica.num_waiting_tokens + prompt - OVERLAP_SCORE_CREDIT * cached
        held = replica.kv_usage * self._num_blocks + replica.num_waiting_tokens / size
        return PREFILL_LOAD_SCALE * max(tokens, 0) / size + held + -(-prompt // size)
