"""The part of a run that sends: a plan's requests, or one client's share of them, on an event loop of this process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kvplan.load.client.connection import Client
from kvplan.load.client.record import RequestRecord
from kvplan.load.observed.health import HealthMeter, ProcessSample
from kvplan.load.target import Target
from kvplan.load.traffic.dispatch import Dispatcher
from kvplan.load.traffic.plan import TrafficPlan
from kvplan.load.traffic.prompts import PromptBook, TokenPrompts
from kvplan.workload.requests import RequestSpec

Result = TypeVar("Result")

_PROGRESS_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Sending:
    """What to send, and where. run: names the run, so that its prompts are in no other.

    tokens: prompts of token ids instead of words, where the server's vocabulary is known.
    """

    target: Target
    plan: TrafficPlan
    timeout_seconds: float
    run: str = ""
    same_prompt: bool = False
    tokens: TokenPrompts | None = None


@dataclass(frozen=True, slots=True)
class SentSoFar:
    """Requests sent and ended, and tokens that came, ``seconds`` after the start."""

    seconds: float
    num_sent: int
    num_ended: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of it. records: in order of sending. samples: one for each process. interrupted: it was stopped."""

    records: tuple[RequestRecord, ...]
    samples: tuple[ProcessSample, ...]
    interrupted: bool


OnSent = Callable[[SentSoFar], None]


class Sender:
    """Everything that can be made before the first request is due is made here. KvplanError as from Dispatcher."""

    def __init__(self, sending: Sending, on_sent: OnSent) -> None:
        workload = sending.plan.workload
        self._sending, self._on_sent = sending, on_sent
        self._book = PromptBook(workload.seed, sending.target.scale, sending.same_prompt, sending.run)
        self._book.prepare(workload.input_len.last, workload.num_prefixes, workload.prefix_len)
        self._dispatcher = Dispatcher(sending.plan, self._send)
        self._client = Client(sending.target.form.address, timeout_seconds=sending.timeout_seconds)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._interrupted = self._is_stopped = False

    def run(self, start: float | None = None) -> Sent:
        """Send it all and wait for the answers. start: as of Dispatcher.run."""
        # What exists by now is left out of later collections, each of which would stop the event loop.
        gc.collect()
        gc.freeze()
        try:
            return run_on_loop(self._run(start))
        finally:
            gc.unfreeze()

    def stop(self) -> None:
        """Send nothing more and break off what is under way, or send nothing at all. From any thread."""
        self._is_stopped = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                self._loop.call_soon_threadsafe(self._interrupt)

    async def _run(self, start: float | None) -> Sent:
        self._loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
            self._loop.add_signal_handler(signal.SIGINT, self._interrupt)
            self._loop.add_signal_handler(signal.SIGTERM, self._interrupt)
        if self._is_stopped:  # before there was a loop to tell
            self._interrupt()
        reporting = asyncio.ensure_future(self._report())
        try:
            async with HealthMeter() as meter:
                await self._dispatcher.run(start)
        finally:
            reporting.cancel()
            self._client.close()
        return Sent(tuple(self._dispatcher.records), (meter.sample,), self._interrupted)

    async def _send(self, spec: RequestSpec, record: RequestRecord) -> None:
        sending = self._sending
        prompt = self._book.prompt_of(spec) if sending.tokens is None else sending.tokens.prompt(spec)
        seed = sending.plan.workload.seed + spec.index
        await self._client.send(record, sending.target.form.request(prompt, spec.num_output_tokens, seed))

    def _interrupt(self) -> None:
        self._interrupted = True
        self._dispatcher.stop()

    async def _report(self) -> None:
        dispatcher = self._dispatcher
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            seconds = time.perf_counter() - dispatcher.started
            self._on_sent(SentSoFar(seconds, len(dispatcher.records), dispatcher.num_ended, dispatcher.num_tokens))


def run_on_loop(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """On uvloop where it is installed: it takes a third off the work per chunk."""
    loop = _event_loop_factory()()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
