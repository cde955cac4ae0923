"""How much of the load stays within the service level: requests within it and goodput, at every load tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kvplan.reports.plots.canvas import FAINT, finish, from_zero, say, thousands
from kvplan.reports.plots.throughput import LINE_LOOKS
from kvplan.reports.statuses import GREEN, VERMILION
from kvplan.reports.wording import plural, short_number
from kvplan.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Search = Mapping[str, Any]

_MOST_LINES: Final = 6
UNITS: Final = {"max_concurrency": "requests in flight", "request_rate": "requests/s"}


def searches(run: Run) -> list[Search]:
    """The summary's searches for the largest load; [] where none was made."""
    slo = run.summary.get("slo")
    listed = slo.get("searches") if isinstance(slo, dict) else None
    found = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return [entry for entry in found if entry.get("points") and entry.get("variable") in UNITS]


def has_search(run: Run) -> bool:
    return bool(searches(run))


def draw(run: Run, figure: Figure) -> str:
    """Left: share of requests with its 95 % interval, a full mark where most runs keep the level. Right: goodput."""
    found = searches(run)[:_MOST_LINES]
    if not found:
        return say(figure, run, "No search within a service level was made.")
    from matplotlib.ticker import MaxNLocator

    left, right = figure.subplots(1, 2)
    for place, search in enumerate(found):
        colour, marker, _ = LINE_LOOKS[place % len(LINE_LOOKS)]
        label = _label(search, found)
        _shares(left, search["points"], colour, marker, label)
        _goodput(right, search["points"], colour, marker)
    if len(found) == 1:
        for axes in (left, right):
            _edge(axes, found[0])
    variable = str(found[0]["variable"])
    for axes in (left, right):
        axes.set_xlabel(f"{variable} ({UNITS[variable]})")
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=variable == "max_concurrency"))
        axes.xaxis.set_major_formatter(thousands())
    left.set_title("Requests within the service level", fontsize=9.5)
    left.set_ylabel("% of the requests, with 95 % interval")
    left.set_ylim(0, 106)
    left.scatter([], [], marker="o", color=FAINT, label="most runs keep it (p99)")
    left.scatter([], [], marker="o", facecolors="white", edgecolors=FAINT, label="most runs miss it")
    left.legend(loc="lower left")
    right.set_title("Goodput: requests/s within it", fontsize=9.5)
    right.set_ylabel("requests/s (bar: lowest to highest run)")
    from_zero(right, max(point["request_goodput_range"][1] for search in found for point in search["points"]))
    return finish(figure, run, _finding(run, found), _held(found))


def _label(search: Search, found: Sequence[Search]) -> str:
    """The settings in which the searches differ, '' for a single one."""
    differing = [name for name in search["settings"] if len({str(other["settings"].get(name)) for other in found}) > 1]
    return ", ".join(f"{name} {search['settings'][name]}" for name in differing)


def _shares(axes: Axes, points: Sequence[Mapping[str, Any]], colour: str, marker: str, label: str) -> None:
    values = [point["value"] for point in points]
    shares = [100 * point["requests_within"]["share"] for point in points]
    low = [share - 100 * p["requests_within"]["low"] for share, p in zip(shares, points, strict=True)]
    high = [100 * p["requests_within"]["high"] - share for share, p in zip(shares, points, strict=True)]
    errors = [[max(0.0, value) for value in low], [max(0.0, value) for value in high]]
    axes.errorbar(values, shares, yerr=errors, fmt="none", ecolor=colour, alpha=0.5, elinewidth=1.4, capsize=3)
    axes.plot(values, shares, color=colour, linewidth=1.2, alpha=0.6, label=label or None)
    faces = [colour if 2 * point["num_keeping"] > point["num_runs"] else "white" for point in points]
    axes.scatter(values, shares, marker=marker, s=40, facecolors=faces, edgecolors=colour, zorder=3, linewidth=1.4)


def _goodput(axes: Axes, points: Sequence[Mapping[str, Any]], colour: str, marker: str) -> None:
    values = [point["value"] for point in points]
    axes.plot(values, [point["request_goodput"] for point in points], marker=marker, color=colour, linewidth=1.2)
    axes.vlines(values, *zip(*(point["request_goodput_range"] for point in points), strict=True), color=colour,
                linewidth=2, alpha=0.5)  # fmt: skip


def _edge(axes: Axes, search: Search) -> None:
    """The last load that keeps the level and the first that does not."""
    if search.get("keeps") is not None:
        axes.axvline(search["keeps"], color=GREEN, linewidth=1.4, linestyle="--", zorder=1)
    if search.get("misses") is not None:
        axes.axvline(search["misses"], color=VERMILION, linewidth=1.4, linestyle=":", zorder=1)


def _held(found: Sequence[Search]) -> str:
    shared = {
        name: value
        for name, value in found[0]["settings"].items()
        if value is not None and all(other["settings"].get(name) == value for other in found)
    }
    return ", ".join(f"{name} {value}" for name, value in shared.items())


def _finding(run: Run, found: Sequence[Search]) -> str:
    level = " and ".join(
        f"{name} {short_number(bound)} ms" for name, bound in run.summary["slo"]["objectives_ms"].items()
    )
    best = max(found, key=lambda search: search["keeps"] or 0.0)
    variable = str(best["variable"])
    if best["keeps"] is None:
        return f"{level} (p99) is not kept at any {variable} that was tried"
    point = next(point for point in best["points"] if point["value"] == best["keeps"])
    runs = f"{point['num_keeping']} of {plural(point['num_runs'], 'run')}"
    return f"{level} (p99) is kept up to {variable} {short_number(best['keeps'])}, in {runs} there"
