"""Requests in flight, and their tokens on the way from the frames to the coroutine that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.server.messages import PromptLogprobs, TokenLogprobs


class EngineDead(Exception):
    """The engine process has ended. The message is one sentence."""


class RequestRefused(Exception):
    """The engine can never run this request. The message is one sentence."""


class TokenEvent(NamedTuple):
    """A new token of choice ``choice``. reason: why it ended with it. stop_token: where it was one named."""

    choice: int
    token: int
    reason: str | None = None
    stop_token: int | None = None
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True)
class AnswerTimes:
    """When an answer's first and last tokens were known, in seconds of the monotonic clock."""

    first_token: float = 0.0
    last_token: float = 0.0
    num_tokens: int = 0


Reader = Callable[[TokenEvent], bool]


class Mailbox:
    """Where the tokens of an HTTP request's generations gather. Frames put them in, one coroutine takes them out.

    While it waits, a ``reader`` may use a token on the spot: waking a coroutine costs more than what it does then.
    """

    __slots__ = ("_error", "_events", "_reader", "_waiter")

    def __init__(self) -> None:
        self._events: list[TokenEvent] = []
        self._error: Exception | None = None
        self._reader: Reader | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: TokenEvent) -> None:
        reader = self._reader
        if reader is not None:
            try:
                if reader(event):
                    return
            except Exception as problem:  # noqa: BLE001 - of this request alone: its coroutine raises it
                self.fail(problem)
                return
        self._reader = None  # those that follow wait behind this one
        self._events.append(event)
        self._wake()

    def fail(self, error: Exception) -> None:
        """No more tokens will come: ``take`` raises ``error`` once those that came before are taken."""
        self._error = error
        self._reader = None
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def take(self, reader: Reader | None = None) -> list[TokenEvent]:
        """What has gathered; waits for at least one event. Raises what ``fail`` was told.

        reader: is given each event that comes meanwhile; one that it returns False for gathers, and so do the next.
        """
        while not self._events:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            self._reader = reader
            try:
                await self._waiter
            finally:
                self._reader = None
        events, self._events = self._events, []
        return events


@dataclass(slots=True, eq=False)
class Generation:
    """One request in flight. ``first``: the number of its first answer; its tokens go to ``mailbox``.

    first_choice: the index, among the choices of the HTTP request, of its first sample. arrival_seconds: when that
    request arrived; scheduled_seconds: when this one left the waiting queue, None before. prompt_logprobs: where they
    were asked for, from the first token on. adapter: the name of the one it runs with.
    """

    first: int
    num_prompt_tokens: int
    params: SamplingParams
    arrival_seconds: float
    mailbox: Mailbox
    first_choice: int = 0
    adapter: str | None = None
    scheduled_seconds: float | None = None
    num_cached_tokens: int = 0
    num_unfinished: int = 0
    prompt_logprobs: PromptLogprobs | None = None
    times: list[AnswerTimes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_unfinished = self.params.n
        self.times = [AnswerTimes() for _ in range(self.params.n)]
