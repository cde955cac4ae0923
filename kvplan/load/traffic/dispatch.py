"""Sends the requests of a plan: when they are due, with at most so many in flight, or user by user."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from kvplan.load.client.record import RequestRecord
from kvplan.load.traffic.plan import TrafficPlan
from kvplan.workload.requests import RequestSpec

Send = Callable[[RequestSpec, RequestRecord], Awaitable[None]]


@dataclass(slots=True)
class Dispatcher:
    """Drives one run, or one client's share of it. ``records`` fills while it runs; ``stop`` ends the sending, and what
    is under way is cut off.

    num_ended, num_tokens: answers that have ended, and their tokens. KvplanError if the requests cannot be drawn (a
    workload that cannot be read).
    """

    plan: TrafficPlan
    send: Send
    records: list[RequestRecord] = field(default_factory=list)
    started: float = 0.0
    num_ended: int = 0
    num_tokens: int = 0
    _stopped: bool = False
    _tasks: set[asyncio.Future[None]] = field(default_factory=set)
    _error: BaseException | None = None
    _requests: Iterator[RequestSpec] = field(init=False)

    def __post_init__(self) -> None:
        self._requests = self.plan.requests()

    async def run(self, start: float | None = None) -> None:
        """Send everything and wait for the last answer.

        start: the schedule's zero, on ``time.perf_counter()``'s clock, which the processes of one machine share; now if
        it is left out.
        """
        requests = self._requests
        self.started = time.perf_counter() if start is None else start
        await _sleep_until(self.started)
        if self._stopped:
            return
        if self.plan.users is not None:
            for number in self.plan.own_users:
                self._start(self._user(number, requests))
        else:
            self._start(self._on_schedule(requests))
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Send nothing more and break off what is under way."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    async def _on_schedule(self, requests: Iterator[RequestSpec]) -> None:
        seats = asyncio.Semaphore(self.plan.own_in_flight) if self.plan.own_in_flight else None
        for spec in requests:
            due = self.started + spec.arrival_seconds
            await _sleep_until(due)
            if seats is not None:
                await seats.acquire()
            now = time.perf_counter()
            if self._stopped or (self._is_due_later(spec) if self.plan.is_open else self._is_over(now)):
                return
            # In a closed loop a request is due when its seat is free.
            had_to_wait = seats is not None and now - due > 0
            permitted = now if had_to_wait or not self.plan.is_open else due
            task = self._start(self._serve(spec, due if self.plan.is_open else permitted, permitted))
            if seats is not None:
                task.add_done_callback(lambda _: seats.release())

    async def _user(self, number: int, requests: Iterator[RequestSpec]) -> None:
        pauses = random.Random(f"{self.plan.workload.seed} user {number}")
        due = time.perf_counter()
        while not self._stopped and not self._is_over(due):
            spec = next(requests, None)
            if spec is None:
                return
            await self._serve(spec, due, due)
            due = time.perf_counter()
            if self.plan.think_seconds:
                due += pauses.expovariate(1 / self.plan.think_seconds)
                if self._is_over(due):
                    return
                await _sleep_until(due)

    def _is_over(self, moment: float) -> bool:
        limit = self.plan.duration_seconds
        return limit is not None and moment - self.started >= limit

    def _is_due_later(self, spec: RequestSpec) -> bool:
        """Whether it comes after the end of the run: the last one at an even rate comes with it."""
        limit = self.plan.duration_seconds
        return limit is not None and spec.arrival_seconds > limit

    async def _serve(self, spec: RequestSpec, scheduled: float, permitted: float) -> None:
        record = RequestRecord(
            index=spec.index,
            scheduled=scheduled,
            permitted=permitted,
            num_prompt_tokens_asked=spec.num_prompt_tokens,
            num_output_tokens_asked=spec.num_output_tokens,
            is_warmup=spec.index < self.plan.num_warmups,
        )
        self.records.append(record)
        try:
            await self.send(spec, record)
        finally:
            self.num_ended += 1
            self.num_tokens += record.num_output_tokens or 0

    def _start(self, coroutine: Awaitable[None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Future[None]) -> None:
        """A failure of ours ends the run; those of the server stand in the records."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self._error is None:
            self._error = task.exception()
            self.stop()


async def _sleep_until(moment: float) -> None:
    """asyncio wakes up to a millisecond late, never early."""
    while (left := moment - time.perf_counter()) > 0:
        await asyncio.sleep(left)
