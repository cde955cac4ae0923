"""Routers that know nothing of prompts: round robin, and the replica with the least in hand."""

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
