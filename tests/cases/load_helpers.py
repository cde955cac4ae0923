"""Running a load against the fake server, and putting records together by hand."""

from __future__ import annotations

from typing import Any

from fake_server import FakeServer

from kvplan.load.client.record import RequestRecord
from kvplan.load.options import LoadOptions
from kvplan.load.run import LoadRun, run_load
from kvplan.load.session import find_target


def load(server: FakeServer, *, with_metrics: bool = False, **given: Any) -> LoadRun:
    """One run. Its probes are taken out of what the server remembers."""
    options = LoadOptions(url=server.url, **given)
    target = find_target(options)
    server.served.clear()
    return run_load(
        target,
        options.traffic(),
        timeout_seconds=options.request_timeout,
        num_clients=options.num_clients,
        with_metrics=with_metrics,
        run="test",
    )


def record(
    arrival: float = 0.0, times: tuple[float, ...] = (1.0, 1.1), *, started: float | None = None, **changes: Any
) -> RequestRecord:
    """A request that was served, one token at each time."""
    made = RequestRecord(0, arrival, arrival, 8, len(times), started=arrival if started is None else started)
    made.times, made.counts, made.num_output_tokens = list(times), [1] * len(times), len(times)
    made.token_source, made.ended, made.status = "continuous_usage", max(times, default=arrival), 200
    for name, value in changes.items():
        setattr(made, name, value)
    return made
