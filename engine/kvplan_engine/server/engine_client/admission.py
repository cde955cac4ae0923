"""How many requests may queue: those beyond are refused at once, so that a client can go elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


class Overloaded(Exception):
    """Too much is queued. reason: vLLM's name of the limit, the label of its metric. The message is one sentence."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class AdmissionQueue:
    """Counts requests, and their prompt tokens, from their arrival until a step first schedules them."""

    max_requests: int | None = None
    max_tokens: int | None = None
    num_requests: int = 0
    num_tokens: int = 0

    def enter(self, num_prompt_tokens: int) -> None:
        """Overloaded when a limit is reached."""
        if self.max_requests is not None and self.num_requests >= self.max_requests:
            raise Overloaded(
                f"The engine is busy: {self.num_requests:,} requests are queued, the most that may be.",
                "max_num_queued_reqs",
            )
        num_tokens = self.num_tokens + num_prompt_tokens
        if self.max_tokens is not None and self.num_requests and num_tokens > self.max_tokens:
            raise Overloaded(
                f"The engine is busy: {num_tokens:,} prompt tokens would be queued, of {self.max_tokens:,} allowed.",
                "max_num_queued_tokens",
            )
        self.num_requests += 1
        self.num_tokens += num_prompt_tokens

    def leave(self, num_prompt_tokens: int) -> None:
        self.num_requests -= 1
        self.num_tokens -= num_prompt_tokens
