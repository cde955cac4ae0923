"""What a router is asked, and what of a replica it may look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvplan.fleet.requests import FleetRequest


class ReplicaView(Protocol):
    """A replica as routers see it; ``replicas.Replica`` is one."""

    index: int

    @property
    def now(self) -> float: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting_tokens(self) -> int: ...

    @property
    def kv_usage(self) -> float: ...

    def match(self, request: FleetRequest) -> int: ...


class Router(Protocol):
    """Chooses a replica for each request, in the order in which they are sent.

    is_blind: it looks at no replica, so that each may be played alone.
    """

    @property
    def is_blind(self) -> bool: ...

    def choose(self, request: FleetRequest, replicas: Sequence[ReplicaView]) -> int:
        """Return the place in ``replicas`` of the one that ``request`` goes to."""
        ...
