"""vLLM's own balancer over data-parallel engines: the one with the fewest requests, more so where KV is short.

vLLM 0.33, vllm/v1/engine/core_client.py, DPLBAsyncMPClient.get_core_engine_for_request:

    requests in flight + 6 x waiting x max(0, share of the KV cache in use - 0.5)

From equal ones it takes the next in turn. It does not look at prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.interface import ReplicaView


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
