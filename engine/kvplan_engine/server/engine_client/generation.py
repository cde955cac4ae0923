"""Requests in flight, and their tokens on the way from the frames to the coroutine that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.server.engine_client.routing import ONLY_ROUTE, Route
from kvplan_engine.server.messages import PromptLogprobsMessage, TokenLogprobs


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


# Given the number of a choice, its token, and whether more tokens wait behind it: whether it was used on the spot.
Writer = Callable[[int, int, bool], bool]


class Mailbox:
    """Where the tokens of an HTTP request's generations gather. Frames put them in, one coroutine takes them out.

    While it waits, a ``writer`` may use ordinary tokens on the spot: waking a coroutine costs more than what it does
    then.
    """

    __slots__ = ("_error", "_events", "_waiter", "_writer")

    def __init__(self) -> None:
        self._events: list[TokenEvent] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._writer: Writer | None = None

    def put_ordinary(self, choice: int, token: int, is_late: bool = False) -> None:
        """A token that ends nothing and of which nothing more is known. is_late: the next step's are here, too."""
        writer = self._writer
        if writer is not None:
            try:
                if writer(choice, token, is_late):
                    return
            except Exception as problem:  # noqa: BLE001 - of this request alone: its coroutine raises it
                self.fail(problem)
                return
        self.put(TokenEvent(choice, token))

    def put(self, event: TokenEvent) -> None:
        self._writer = None  # those that follow wait behind this one
        self._events.append(event)
        self._wake()

    def fail(self, error: Exception) -> None:
        """No more tokens will come: ``take`` raises ``error`` once those that came before are taken."""
        self._error = error
        self._writer = None
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def take(self, writer: Writer | None = None) -> list[TokenEvent]:
        """What has gathered; waits for at least one event. Raises what ``fail`` was told.

        writer: is given each ordinary token that comes meanwhile; one that it does not use gathers, and so do the next.
        """
        while not self._events:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            self._writer = writer
            try:
                await self._waiter
            finally:
                self._writer = None
        events, self._events = self._events, []
        return events


@dataclass(slots=True, eq=False)
class Answer:
    """One sample of the generation that begins at number ``first``; ``choice`` of its HTTP request.

    first_token, last_token: when they were known, in seconds of the monotonic clock.
    """

    first: int
    choice: int
    mailbox: Mailbox
    first_token: float = 0.0
    last_token: float = 0.0
    num_tokens: int = 0


@dataclass(slots=True, eq=False)
class Generation:
    """One request in flight. ``first``: the number of its first answer; its tokens go to ``mailbox``.

    first_choice: the index, among the choices of the HTTP request, of its first sample. arrival_seconds: when that
    request arrived; scheduled_seconds: when this one left the waiting queue, None before. prompt_logprobs: where they
    were asked for, from the first token on. adapter: the name of the one it runs with. route: the engine that has it.
    """

    first: int
    num_prompt_tokens: int
    params: SamplingParams
    arrival_seconds: float
    mailbox: Mailbox
    first_choice: int = 0
    adapter: str | None = None
    route: Route = ONLY_ROUTE
    scheduled_seconds: float | None = None
    num_cached_tokens: int = 0
    num_unfinished: int = 0
    prompt_logprobs: PromptLogprobsMessage | None = None
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_unfinished = self.params.n
        self.answers = [Answer(self.first, self.first_choice + n, self.mailbox) for n in range(self.params.n)]
