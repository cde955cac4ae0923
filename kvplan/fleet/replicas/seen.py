"""What one request saw."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.fleet.requests import FleetRequest


@dataclass(slots=True, eq=False)
class Seen:
    """What ``request`` saw on the replica of index ``replica``. Seconds from the trace's first request on.

    sent: when its client sent it; first, last: when the client had the first and the last token. num_hit_tokens: found
    in the prefix cache when it was first admitted. in_stages: seconds that both are later, as its prompt passed the
    stages of a pipeline after the step that read it.
    """

    request: FleetRequest
    replica: int
    sent: float
    first: float = 0.0
    last: float = 0.0
    num_hit_tokens: int = 0
    num_preemptions: int = 0
    in_stages: float = 0.0

    @property
    def num_prompt_tokens(self) -> int:
        return self.request.num_prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        return self.request.num_output_tokens

    @property
    def ttft_seconds(self) -> float:
        return self.first + self.in_stages - self.sent

    @property
    def e2el_seconds(self) -> float:
        return self.last + self.in_stages - self.sent

    @property
    def tpot_seconds(self) -> float | None:
        """None for an answer of one token."""
        tokens = self.request.num_output_tokens
        return None if tokens < 2 else (self.last - self.first) / (tokens - 1)
