"""The fleet of a trace as one HTML page: the answer, and pictures of load, queue, cache, waiting times and costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.estimate.speed.queueing.figures import Statistic
from kvplan.estimate.speed.step_picture import save_picture
from kvplan.planner.answer.charts import Chart, Line, chart
from kvplan.planner.answer.fleet_document import fleet_assumptions, usd_per_hour
from kvplan.planner.answer.page import (
    TableRow,
    commands,
    figure,
    html_page,
    listed,
    paragraphs,
    side_by_side_figures,
    table,
)
from kvplan.planner.answer.ranges import milliseconds
from kvplan.planner.choices.verdict import Figure
from kvplan.planner.fleets.answering import FleetAnswer
from kvplan.planner.fleets.judging import WindowVerdict
from kvplan.planner.fleets.playing import Played
from kvplan.planner.launch.engines import launch_commands
from kvplan.planner.question.slo import Bound

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS: Final = {"a": "#1f5f99", "b": "#b3541e", "c": "#2d7a46", "d": "#7a4fa3"}
_COLUMNS: Final = 2
_SHOWN: Final[dict[Statistic, str]] = {"p50": "c", "p95": "a", "p99": "b"}
_MOST_POINTS: Final = 400
_LOAD_BARS: Final = 120
_BEYOND: Final = 4.0
"""Times the bound that the picture of costs reaches."""


def fleet_page(answer: FleetAnswer, lines: Sequence[str]) -> str:
    """The whole page. ``lines``: the answer in sentences, the first of them what to rent."""
    best = answer.best
    assert best is not None, "a page shows a fleet"
    title = f"{answer.plan.spec.title}: a fleet for {answer.trace.path.name}"
    command = launch_commands(answer.plan.deployments[0], answer.plan.spec.served_id).get("vllm", "")
    body = [
        paragraphs(lines),
        commands([command] if command else []),
        "<h2>Over the trace</h2>",
        _charts(_over_the_trace(answer, best)),
        "<h2>Against the service level</h2>",
        _charts(_against_the_level(answer, best)),
        "<h2>Windows</h2>",
        _windows(answer.plan.request.goal.slo.bounds(), best.verdict.windows),
        "<h2>What it rests on</h2>",
        listed(fleet_assumptions(answer)),
    ]
    return html_page(title, body)


def _over_the_trace(answer: FleetAnswer, best: Played) -> list[Chart]:
    return [_load_chart(answer), _queue_chart(best), _cache_chart(best), _hits_chart(best)]


def _against_the_level(answer: FleetAnswer, best: Played) -> list[Chart]:
    cost = _cost_chart(answer)
    return [*_bound_charts(answer, best), *([] if cost is None else [cost])]


def _charts(charts: Sequence[Chart]) -> str:
    return side_by_side_figures(figure(chart(each), each.caption) for each in charts)


def _load_chart(answer: FleetAnswer) -> Chart:
    requests = answer.demand.requests
    width = max(requests[-1].sent / _LOAD_BARS, 10.0)
    counts = [0] * (int(requests[-1].sent / width) + 1)
    for each in requests:
        counts[int(each.sent / width)] += 1
    points = [(place * width / 60, count / width) for place, count in enumerate(counts)]
    caption = f"Requests sent per second, in stretches of {width:,.0f} s."
    return Chart("Load", "minutes", "requests/s", (Line("sent", _stepped(points), "a"),), caption)


def _queue_chart(best: Played) -> Chart:
    samples = best.play.samples
    waiting = _thinned([(each.at / 60, float(each.num_waiting)) for each in samples])
    running = _thinned([(each.at / 60, float(each.num_running)) for each in samples])
    lines = (Line("running", running, "a"), Line("waiting", waiting, "b"))
    caption = f"Requests that run and that wait, of all replicas together{_looked_at(best)}."
    return Chart("Queue", "minutes", "requests", lines, caption)


def _looked_at(best: Played) -> str:
    samples = best.play.samples
    return f", looked at every {samples[1].at - samples[0].at:,.0f} s" if len(samples) > 1 else ""


def _cache_chart(best: Played) -> Chart:
    points = _thinned([(each.at / 60, 100 * each.kv_usage) for each in best.play.samples])
    lines = (Line("held by running requests", points, "c"),)
    caption = f"Blocks held, of all replicas on average{_looked_at(best)}."
    return Chart("KV cache", "minutes", "% of blocks", lines, caption, top=100.0)


def _hits_chart(best: Played) -> Chart:
    points = [(each.window.start / 60, 100 * each.window.hit_rate) for each in best.verdict.windows]
    lines = (Line("found", _stepped(points), "d"),)
    return Chart(
        "Prefix hits", "minutes", "% of prompt tokens", lines, "Found in a prefix cache, by window.", top=100.0
    )


def _bound_charts(answer: FleetAnswer, best: Played) -> list[Chart]:
    """The percentiles of each objective by window, with its bound and the interval of what is held against it."""
    charts = []
    for bound in answer.plan.request.goal.slo.bounds():
        lines = []
        band = _stepped_band([(each.window.start / 60, each.of(bound)) for each in best.verdict.windows])
        for statistic, colour in _SHOWN.items():
            found = [(each.window.start / 60, each.window.at(bound.name, statistic)) for each in best.verdict.windows]
            points = [(at, 1000 * value) for at, value in found if value is not None]
            own = band if statistic == bound.statistic else ()
            lines.append(Line(statistic, _stepped(points), colour, band=own))
        caption = f"{bound.name.upper()} of the requests sent in each window; dashed: {bound.word} at most "
        caption += f"{1000 * bound.seconds:,g} ms."
        if any(line.band for line in lines):
            caption += f" Shaded: where {bound.statistic} lies in 9 of 10 published measurements of such predictions."
        charts.append(Chart(bound.name.upper(), "minutes", "ms", tuple(lines), caption, bound=1000 * bound.seconds))
    return charts


def _stepped_band(figures: Sequence[tuple[float, Figure | None]]) -> tuple[tuple[float, float, float], ...]:
    """The interval of each window that has one, in ms."""
    ends = [(at, each.between) for at, each in figures if each is not None and each.between.is_bounded]
    low = _stepped([(at, 1000 * between.low) for at, between in ends])
    high = _stepped([(at, 1000 * between.high) for at, between in ends])
    return tuple((at, least, most) for (at, least), (_, most) in zip(low, high, strict=True))


def _cost_chart(answer: FleetAnswer) -> Chart | None:
    """What the figure of the bound that fails first is with fewer and with more replicas, over what they cost."""
    played = answer.frontier
    worst = None if len(played) < 2 else played[0].verdict.deciding.worst
    if worst is None:
        return None
    bound, points = worst.bound, []
    for each in played:
        value = each.verdict.deciding.window.at(bound.name, bound.statistic)
        cost = usd_per_hour(answer, each)
        if value is not None and value <= _BEYOND * bound.seconds:
            points.append((float(each.plan.replicas) if cost is None else cost, 1000 * value))
    unit = "$ per hour" if usd_per_hour(answer, played[0]) is not None else "replicas"
    caption = (
        f"What another {bound.word} costs: the same deployment with fewer and more replicas, in the busiest window."
    )
    lines = (Line(bound.word, tuple(sorted(points)), "a", has_dots=True),)
    return Chart("Cost over service level", unit, "ms", lines, caption, bound=1000 * bound.seconds)


def _windows(bounds: Sequence[Bound], windows: Sequence[WindowVerdict]) -> str:
    heads = [
        "from",
        "requests/s",
        "hits",
        *(f"{each.word} ms" for each in bounds),
        "waiting",
        "KV",
        "sure",
    ]
    rows = []
    for judged in windows:
        window = judged.window
        cells = [
            f"{window.start / 60:,.0f} min",
            f"{window.requests_per_second:.2f}",
            f"{100 * window.hit_rate:.1f} %",
            *(milliseconds(judged.of(each)) for each in bounds),
            f"{window.most_waiting:,}",
            f"{100 * window.most_kv_usage:.0f} %",
            f"{100 * judged.confidence:.0f} %",
        ]
        rows.append(TableRow(cells, is_miss=not judged.keeps))
    return table("windows", heads, rows)


def _stepped(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """A level for each window instead of a slope between two."""
    if len(points) < 2:
        return tuple(points)
    width, found = points[1][0] - points[0][0], []
    for at, value in points:
        found += [(at, value), (at + width, value)]
    return tuple(found)


def _thinned(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most so many points, the highest of each stretch."""
    stride = -(-len(points) // _MOST_POINTS)
    if stride <= 1:
        return tuple(points)
    return tuple(
        max(points[place : place + stride], key=lambda each: each[1]) for place in range(0, len(points), stride)
    )


def draw_fleet(answer: FleetAnswer, path: Path) -> None:
    """Write the picture to ``path``. KvplanError where that cannot be written."""
    from matplotlib.figure import Figure

    best = answer.best
    assert best is not None, "pictures show a fleet"
    charts = [*_over_the_trace(answer, best), *_against_the_level(answer, best)]  # as on the page
    rows = -(-len(charts) // _COLUMNS)
    figure = Figure(figsize=(12, 2.9 * rows), layout="constrained")
    axes = figure.subplots(rows, _COLUMNS, squeeze=False).flatten()
    for each, place in zip(charts, axes, strict=False):
        _draw(each, place)
    for place in axes[len(charts) :]:
        place.set_axis_off()
    save_picture(figure, path)


def _draw(chart: Chart, axes: Axes) -> None:
    for line in chart.lines:
        xs, ys = zip(*line.points, strict=True) if line.points else ((), ())
        marker = "o" if line.has_dots else ""
        if line.band:
            places, low, high = zip(*line.band, strict=True)
            axes.fill_between(places, low, high, color=_COLOURS[line.colour], alpha=0.15, linewidth=0)
        axes.plot(xs, ys, label=line.label, color=_COLOURS[line.colour], marker=marker, linewidth=1.3)
    if chart.bound is not None:
        axes.axhline(chart.bound, color="#b00020", linestyle="--", linewidth=1.0)
    axes.set_ylim(0, chart.top)
    axes.set_title(chart.title, loc="left", fontsize=10)
    axes.set_xlabel(chart.x_label, fontsize=8)
    axes.set_ylabel(chart.y_label, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, color="#e8ebee")
    axes.legend(fontsize=8, frameon=False, ncols=len(chart.lines))
