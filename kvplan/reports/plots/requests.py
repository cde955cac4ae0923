"""Single requests: how their latencies are distributed, and how they went over the run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kvplan.reports.looks import BLUE, SKY_BLUE, VERMILION
from kvplan.reports.plots.canvas import finish, from_zero, is_narrow, panels, thousands
from kvplan.reports.selection import best_trial
from kvplan.reports.wording import plural, short_number
from kvplan.runs.request_lines import REQUESTS, RequestLine
from kvplan.runs.storage.reader import Run
from kvplan.runs.storage.requests import read_requests

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEWEST: Final = 5
_MOST_DOTS: Final = 3000
# The slowest are what one looks for, so none of these is left out.
_SLOWEST_SHARE: Final = 0.01
_AT_ONCE: Final = 0.01
"""Share of the slowest latency within which all requests were sent, so that only their order says something."""


def draw(run: Run, figure: Figure) -> str | None:
    """Draw the share of requests within a latency, and each request's latency over time. None without such a record."""
    # Shown are the requests of the trial that is recommended, of a load its main run.
    entries = run.entries("best")
    listed = run.trial(str(entries[0].get("trial_id"))) if entries else None
    trial = listed or best_trial(run)
    lines = [] if trial is None else measured_requests(run, trial.trial_id)
    served = [line for line in lines if line["ttft_s"] is not None]
    if len(served) < _FEWEST:
        return None
    shares, times = panels(figure, 2)
    _distribution(shares, served)
    _over_time(times, served, [line for line in lines if line["error"] is not None])
    return finish(figure, run, _finding(served, len(lines) - len(served)))


def measured_requests(run: Run, trial_id: str) -> list[RequestLine]:
    """Return a trial's requests without warm-ups; [] where none were kept."""
    path = run.directory / REQUESTS
    if not path.is_file():
        return []
    lines = _read(run.directory, path.stat().st_mtime_ns).get(trial_id, [])
    return [line for line in lines if not line.get("is_warmup")]


@lru_cache(maxsize=1)
def _read(directory: Path, modified_ns: int) -> dict[str, list[RequestLine]]:
    """A page draws each picture twice, and reads a hundred thousand lines once."""
    return read_requests(directory)


def _distribution(axes: Axes, served: Sequence[RequestLine]) -> None:
    shown = []
    for name, label, colour, dash in (("ttft_s", "TTFT", BLUE, "-"), ("e2el_s", "E2E latency", VERMILION, "--")):
        values = np.sort([1000 * value for line in served if (value := line[name]) is not None])  # type: ignore[literal-required]
        shares = 100 * np.arange(1, len(values) + 1) / len(values)
        axes.step(values, shares, dash, where="post", color=colour, label=label)
        shown += [values[0], values[-1]]
    is_wide = max(shown) > 10 * min(shown)  # within a decade a logarithmic axis may have no number at all
    if is_wide:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(lambda value, place: "")
    axes.xaxis.set_major_formatter(thousands())
    axes.set_ylim(0, 104)
    axes.set_xlabel("latency (ms, log scale)" if is_wide else "latency (ms)")
    axes.set_ylabel("requests within it (%)")
    axes.set_title("Distribution", fontsize=9.5)
    axes.legend(loc="best", fontsize=8 if is_narrow(axes) else 9)


def _over_time(axes: Axes, served: Sequence[RequestLine], failed: Sequence[RequestLine]) -> None:
    shown = _thinned(served)
    highest = max(1000 * (line["e2el_s"] or 0.0) for line in shown)
    at_once = 1000 * max(line["sent_s"] for line in [*shown, *failed]) < _AT_ONCE * highest
    in_order = sorted([*served, *failed], key=lambda line: line["sent_s"])
    order = {line["id"]: place for place, line in enumerate(in_order, start=1)}

    def places(lines: Sequence[RequestLine]) -> list[float]:
        return [float(order[line["id"]]) if at_once else line["sent_s"] for line in lines]

    for name, label, colour, marker in (("e2el_s", "E2E latency", SKY_BLUE, "s"), ("ttft_s", "TTFT", BLUE, "o")):
        values = [1000 * (line[name] or 0.0) for line in shown]  # type: ignore[literal-required]
        axes.plot(places(shown), values, marker, color=colour, markersize=2.5, label=label)
    if failed:
        axes.plot(places(failed), [0.0] * len(failed), "x", color=VERMILION, markersize=5,
                  label="failed", clip_on=False)  # fmt: skip
    from_zero(axes, 1.25 * highest)
    if at_once:
        axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("request, in the order sent (all at once)" if at_once else "sent, since the first request (s)")
    axes.set_ylabel("ms")
    axes.set_title("In order" if at_once else "Over time", fontsize=9.5)
    axes.legend(loc="upper right", ncols=3, columnspacing=0.8, handletextpad=0.1, fontsize=7 if is_narrow(axes) else 9)


def _thinned(served: Sequence[RequestLine]) -> list[RequestLine]:
    """Return of very many requests every so many, and all of the slowest."""
    if len(served) <= _MOST_DOTS:
        return list(served)
    slow = np.quantile([line["e2el_s"] or 0.0 for line in served], 1 - _SLOWEST_SHARE)
    stride = -(-len(served) // _MOST_DOTS)
    return [line for place, line in enumerate(served) if place % stride == 0 or (line["e2el_s"] or 0.0) >= slow]


def _finding(served: Sequence[RequestLine], num_failed: int) -> str:
    ttfts = [1000 * (line["ttft_s"] or 0.0) for line in served]
    half, most = (short_number(float(np.percentile(ttfts, percent))) for percent in (50, 99))
    slowest = short_number(max(ttfts))
    failed = f"; {plural(num_failed, 'request')} failed" if num_failed else ""
    within = f"{half} ms, 99 % within {most} ms, the last within {slowest} ms"
    return f"Half of the requests had their first token within {within}{failed}"
