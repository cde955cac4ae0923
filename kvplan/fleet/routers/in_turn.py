"""Routers that know nothing of prompts: round robin, and the replica with the least in hand.

vLLM's own balancer over data-parallel engines is one of them. It takes the engine with the fewest requests, more so
where KV is short (vLLM 0.33, vllm/v1/engine/core_client.py, DPLBAsyncMPClient.get_core_engine_for_request):

    requests in flight + 6 x waiting x max(0, share of the KV cache in use - 0.5)

From equal ones it takes the next in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.interface import ReplicaView

WAITING_WEIGHT: Final = 4
"""A request that waits counts as so many that run (vllm/v1/engine/core_client.py, DPLBAsyncMPClient)."""


class RoundRobin:
    """One replica after the other."""

    is_blind = True

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: FleetRequest, replicas: Sequence[ReplicaView]) -> int:
        """See ``Router``."""
        chosen = self._turn % len(replicas)
        self._turn = chosen + 1
        return chosen


class LeastLoaded:
    """The replica with the least in hand, a waiting request counted as ``WAITING_WEIGHT`` running ones; of several
    alike the next in turn."""

    is_blind = False

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: FleetRequest, replicas: Sequence[ReplicaView]) -> int:
        """See ``Router``."""
        count = len(replicas)
        chosen = min(
            range(count),
            key=lambda place: (_in_hand(replicas[place]), (place - self._turn) % count),
        )
        self._turn = (chosen + 1) % count
        return chosen


def _in_hand(replica: ReplicaView) -> int:
    return WAITING_WEIGHT * replica.num_waiting + replica.num_running


class DataParallelBalancer:
    """The balancer of one API server."""

    is_blind = False

    def __init__(self) -> None:
        self._start = 0

    def choose(self, request: FleetRequest, replicas: Sequence[ReplicaView]) -> int:
        """See ``Router``."""
        count = len(replicas)
        places = [(self._start + each) % count for each in range(count)]
        self._start = (self._start + 1) % count
        return min(places, key=lambda place: _score(replicas[place]))


def _score(replica: ReplicaView) -> float:
    waiting = replica.num_waiting
    return waiting + replica.num_running + 6.0 * waiting * max(0.0, replica.kv_usage - 0.5)
