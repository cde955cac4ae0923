"""One run: traffic sent, the server watched, and everything as one row and its course over time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kvplan.load.client.connection import Client
from kvplan.load.client.record import RequestRecord
from kvplan.load.observed.figures import MeasuredRun, client_figures, health_figures, server_figures
from kvplan.load.observed.health import ClientHealth, HealthMeter
from kvplan.load.observed.monitor import ServerMonitor, ServerView
from kvplan.load.observed.series import series_of
from kvplan.load.observed.verdict import Verdict, verdict
from kvplan.load.target import Target
from kvplan.load.traffic.dispatch import Dispatcher
from kvplan.load.traffic.plan import TrafficPlan
from kvplan.load.traffic.prompts import PromptBook
from kvplan.metrics.reading import ServerReading
from kvplan.runs.columns import Row
from kvplan.runs.directory import Series
from kvplan.workload.requests import RequestSpec

Result = TypeVar("Result")

# Engines count the last request a moment after they have sent its last token.
_SETTLING_SECONDS: Final = 0.1
_PROGRESS_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """A run as it goes. reading: the server's last, None if it tells nothing."""

    seconds: float
    num_sent: int
    num_ended: int
    num_tokens: int
    reading: ServerReading | None


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class LoadRun:
    """What a run showed. interrupted: stopped by Ctrl-C; the figures are of what had ended by then."""

    measured: MeasuredRun
    health: ClientHealth
    server: ServerView
    verdict: Verdict
    interrupted: bool

    def row(self, slo_seconds: Mapping[str, float]) -> Row:
        """Status, throughput, latency, the client's and the server's figures."""
        row = client_figures(self.measured, slo_seconds) | health_figures(self.health) | server_figures(self.server)
        row["bound_by"] = self.verdict.bound_by
        row["meas_max_concurrency"] = row.get("max_running")
        return row | self._status(row)

    def _status(self, row: Row) -> Row:
        failed = [record for record in self.measured.measured if not record.is_served]
        if failed:
            first = next((record.error for record in failed if record.error), "no token came")
            return {"status": "failed", "error": f"{len(failed)} of {len(self.measured.measured)} requests: {first}"}
        if row.get("num_preemptions"):
            return {"status": "preempted"}
        return {"status": "queued" if row.get("bound_by") == "kv" else "ok"}

    @property
    def series(self) -> Series | None:
        return series_of(self.measured, self.server)


def run_load(
    target: Target,
    plan: TrafficPlan,
    *,
    run: str = "",
    same_prompt: bool = False,
    timeout_seconds: float,
    with_metrics: bool = True,
    on_progress: OnProgress = lambda progress: None,
) -> LoadRun:
    """Send the plan's requests and wait for all answers. KvplanError only for what the plan itself lacks (a file).

    run: names it, so that its prompts are in no other run.
    """
    monitor = ServerMonitor(target.form.address.url, target.form.api_key)
    if with_metrics:
        monitor.start()
    book = PromptBook(plan.workload.seed, target.scale, same_prompt, run)
    book.prepare(plan.workload.input_len.last, plan.workload.num_prefixes, plan.workload.prefix_len)
    try:
        _settle_heap()
        session = _Session(target, plan, book, timeout_seconds, monitor, on_progress)
        health, interrupted = run_on_loop(session.run())
        time.sleep(_SETTLING_SECONDS)
    finally:
        gc.unfreeze()
        view = monitor.view()
    measured = MeasuredRun(tuple(session.dispatcher.records), plan.is_open)
    server = view.since(measured.start)
    return LoadRun(measured, health, server, verdict(health, server), interrupted)


def _settle_heap() -> None:
    """What exists by now is left out of later collections, each of which would stop the event loop."""
    gc.collect()
    gc.freeze()


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


class _Session:
    """The part that runs on an event loop."""

    def __init__(
        self,
        target: Target,
        plan: TrafficPlan,
        book: PromptBook,
        timeout_seconds: float,
        monitor: ServerMonitor,
        on_progress: OnProgress,
    ) -> None:
        self.dispatcher = Dispatcher(plan, self._send)
        self._target = target
        self._book = book
        self._seed = plan.workload.seed
        self._client = Client(target.form.address, timeout_seconds=timeout_seconds)
        self._monitor = monitor
        self._on_progress = on_progress
        self._interrupted = False

    async def run(self) -> tuple[ClientHealth, bool]:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
            loop.add_signal_handler(signal.SIGINT, self._interrupt)
            loop.add_signal_handler(signal.SIGTERM, self._interrupt)
        reporting = asyncio.ensure_future(self._report())
        try:
            async with HealthMeter() as meter:
                await self.dispatcher.run()
        finally:
            reporting.cancel()
            self._client.close()
        measured = [record for record in self.dispatcher.records if not record.is_warmup]
        return meter.health(measured), self._interrupted

    async def _send(self, spec: RequestSpec, record: RequestRecord) -> None:
        prompt = self._book.prompt(spec.index, spec.num_prompt_tokens, spec.prefix_index, spec.num_prefix_tokens)
        request = self._target.form.request(prompt, spec.num_output_tokens, self._seed + spec.index)
        await self._client.send(record, request)

    def _interrupt(self) -> None:
        self._interrupted = True
        self.dispatcher.stop()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            self._on_progress(
                Progress(
                    seconds=time.perf_counter() - self.dispatcher.started,
                    num_sent=len(self.dispatcher.records),
                    num_ended=self.dispatcher.num_ended,
                    num_tokens=self.dispatcher.num_tokens,
                    reading=self._monitor.last_reading,
                )
            )
