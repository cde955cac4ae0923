"""What happened to one request. All times are seconds on ``time.perf_counter()``'s clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

TokenSource = Literal["continuous_usage", "token_ids", "usage"]
"""Where token counts come from: usage in every chunk, token ids in every chunk, usage at the end only."""


@dataclass(slots=True)
class RequestRecord:
    """One request.

    scheduled: when the load wanted it sent. permitted: when nothing but the client held it back any more (a limit of
    requests in flight may hold it longer than its schedule). started: when the client began to send it. times, counts:
    when output came, and how many tokens each time; counts are None where only the end tells the number. is_warmup:
    sent before the measured part.
    """

    index: int
    scheduled: float
    permitted: float
    num_prompt_tokens_asked: int
    num_output_tokens_asked: int
    is_warmup: bool = False
    started: float = 0.0
    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    token_source: TokenSource | None = None
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    finish_reason: str | None = None
    ended: float = 0.0
    status: int | None = None
    error: str | None = None

    @property
    def is_served(self) -> bool:
        """Answered to its end, with at least one token."""
        return self.error is None and bool(self.times)

    @property
    def dispatch_delay(self) -> float:
        """How late the client was: nobody else's doing."""
        return max(0.0, self.started - self.permitted)

    def fail(self, reason: str) -> None:
        """The first reason counts."""
        self.error = self.error or reason
