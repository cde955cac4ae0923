"""One run: requests sent and answered, the client and the server watched meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kvplan.load.observed.figures import (
    MeasuredRun,
    client_figures,
    health_figures,
    request_lines,
    series_of,
    server_figures,
)
from kvplan.load.observed.health import ClientHealth, client_health
from kvplan.load.observed.monitor import ServerMonitor, ServerView
from kvplan.load.observed.verdict import LoadVerdict, verdict
from kvplan.load.processes.team import send_together
from kvplan.load.sending import Sender, Sending, Sent, SentSoFar
from kvplan.load.target import Target
from kvplan.load.traffic.plan import TrafficPlan
from kvplan.load.traffic.prompts import TokenPrompts
from kvplan.metrics.reading import ServerReading
from kvplan.runs.columns import Row
from kvplan.runs.directory import Series
from kvplan.runs.request_lines import RequestLine

# Engines count the last request a moment after they have sent its last token.
_SETTLING_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A run as it goes. reading: the server's last, None if it tells nothing."""

    sent: SentSoFar
    reading: ServerReading | None


OnProgress = Callable[[LoadProgress], None]


@dataclass(frozen=True, slots=True)
class LoadRun:
    """What a run showed. interrupted: stopped by Ctrl-C; the figures are of what had ended by then."""

    measured: MeasuredRun
    health: ClientHealth
    server: ServerView
    verdict: LoadVerdict
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

    def requests(self, trial_id: str, *, with_gaps: bool = False) -> list[RequestLine]:
        """Each request of the run of this name. with_gaps: with every gap between its tokens."""
        return request_lines(self.measured, trial_id, with_gaps=with_gaps)

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
    num_clients: int = 1,
    with_metrics: bool = True,
    tokens: TokenPrompts | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> LoadRun:
    """Send the plan's requests and wait for all answers. KvplanError only for what the plan itself lacks (a file).

    run: names it, so that its prompts are in no other run. num_clients: processes that send; with one, this one does.
    tokens: as of Sending.
    """
    monitor = ServerMonitor(target.form.address.url, target.form.api_key)
    if with_metrics:
        monitor.start()

    def report(sent: SentSoFar) -> None:
        on_progress(LoadProgress(sent, monitor.last_reading))

    is_cut_off = True
    try:
        sending = Sending(target, plan, timeout_seconds, run, same_prompt, tokens)
        sent = _send(sending, num_clients, report)
        is_cut_off = sent.interrupted
        time.sleep(_SETTLING_SECONDS)
    finally:
        view = monitor.view(is_urgent=is_cut_off)
    measured = MeasuredRun(sent.records, plan.is_open)
    health = client_health(measured.measured, sent.samples, is_open=plan.is_open)
    server = view.of_run(measured.start, measured.end)
    return LoadRun(measured, health, server, verdict(health, server, measured.measured), sent.interrupted)


def _send(sending: Sending, num_clients: int, report: Callable[[SentSoFar], None]) -> Sent:
    return Sender(sending, report).run() if num_clients == 1 else send_together(sending, num_clients, report)
