"""What one request saw."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.fleet.requests import FleetRequest


@dataclass(slots=True)
class Seen:
    """What ``request`` saw on the replica of index ``replica``. Seconds from the trace's first request on.

    sent: when its client sent it; first, last: when the client had the first and the last token. num_hit_tokens: found
    in the prefix cache when it was first admitted.
    """

    request: FleetRequest
    replica: int
    sent: float
    first: float = 0.0
    last: float = 0.0
    num_hit_tokens: int = 0
    num_preemptions: int = 0

    @property
    def ttft_seconds(self) -> float:
        return self.first - self.sent

    @property
    def e2el_seconds(self) -> float:
        return self.last - self.sent

    @property
    def tpot_seconds(self) -> float | None:
        """None for an answer of one token."""
        tokens = self.request.num_output_tokens
        return None if tokens < 2 else (self.last - self.first) / (tokens - 1)
