"""The fleet of a trace as one HTML page: the answer, and pictures of load, queue, cache, waiting times and costs.

The page holds everything it shows, asks no other host for anything, and follows the reader's light or dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from kvplan.estimate.speed.queueing.figures import Statistic
from kvplan.planner.answer.charts import Chart, Line, chart
from kvplan.planner.answer.fleet_document import fleet_assumptions, usd_per_hour
from kvplan.planner.fleets.answering import FleetAnswer
from kvplan.planner.fleets.judging import WindowVerdict
from kvplan.planner.fleets.playing import Played
from kvplan.planner.launch.engines import launch_commands

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d232a; --faint: #5b6570; --paper: #ffffff; --line: #d5dae0; --grid: #e8ebee;
  --a: #1f5f99; --b: #b3541e; --c: #2d7a46; --d: #7a4fa3; --bound: #b00020; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --faint: #a2abb4; --paper: #14181c; --line: #39424b;
  --grid: #262d34; --a: #7db8ee; --b: #f0a56b; --c: #7ccf96; --d: #c8a5ee; --bound: #ff8a94; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1180px;
  margin: 0 auto; padding: 0 16px 48px; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 24px 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 32px 0 4px; }
p { margin: 6px 0; max-width: 80ch; } .faint, figcaption { color: var(--faint); font-size: .9rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 8px 28px; }
figure { margin: 0; } svg { width: 100%; height: auto; display: block; } svg text { fill: var(--faint); }
pre { white-space: pre-wrap; overflow-wrap: anywhere;
  border: 1px solid var(--line); border-radius: 6px; padding: 10px; font-size: .85rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 12px 3px 0; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--faint); font-weight: 600; }
li { max-width: 90ch; } .miss { color: var(--bound); }
"""
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
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in lines),
        f"<pre>{escape(command)}</pre>" if command else "",
        "<h2>Over the trace</h2>",
        _charts(_over_the_trace(answer, best)),
        "<h2>Against the service level</h2>",
        _charts(_against_the_level(answer, best)),
        "<h2>Windows</h2>",
        _table(best.verdict.windows),
        "<h2>What it rests on</h2>",
        "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in fleet_assumptions(answer)) + "</ul>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} · kvplan</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, body))
        + "\n</body>\n</html>\n"
    )


def fleet_charts(answer: FleetAnswer) -> list[Chart]:
    """All pictures of the page, in its order."""
    best = answer.best
    assert best is not None, "pictures show a fleet"
    return [*_over_the_trace(answer, best), *_against_the_level(answer, best)]


def _over_the_trace(answer: FleetAnswer, best: Played) -> list[Chart]:
    return [_load_chart(answer), _queue_chart(best), _cache_chart(best), _hits_chart(best)]


def _against_the_level(answer: FleetAnswer, best: Played) -> list[Chart]:
    cost = _cost_chart(answer)
    return [*_bound_charts(answer, best), *([] if cost is None else [cost])]


def _charts(charts: Sequence[Chart]) -> str:
    figures = (f"<figure>{chart(each)}<figcaption>{escape(each.caption)}</figcaption></figure>" for each in charts)
    return '<div class="charts">' + "".join(figures) + "</div>"


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
    return Chart("Queue", "minutes", "requests", lines, "Requests that run and that wait, of all replicas together.")


def _cache_chart(best: Played) -> Chart:
    points = _thinned([(each.at / 60, 100 * each.kv_usage) for each in best.play.samples])
    lines = (Line("held by running requests", points, "c"),)
    return Chart("KV cache", "minutes", "% of blocks", lines, "Blocks held, of all replicas on average.", top=100.0)


def _hits_chart(best: Played) -> Chart:
    points = [(each.window.start / 60, 100 * each.window.hit_rate) for each in best.verdict.windows]
    lines = (Line("found", _stepped(points), "d"),)
    return Chart(
        "Prefix hits", "minutes", "% of prompt tokens", lines, "Found in a prefix cache, by window.", top=100.0
    )


def _bound_charts(answer: FleetAnswer, best: Played) -> list[Chart]:
    """The percentiles of each objective by window, with its bound."""
    charts = []
    for bound in answer.plan.request.goal.slo.bounds():
        lines = []
        for statistic, colour in _SHOWN.items():
            found = [(each.window.start / 60, each.window.at(bound.name, statistic)) for each in best.verdict.windows]
            points = [(at, 1000 * value) for at, value in found if value is not None]
            lines.append(Line(statistic, _stepped(points), colour))
        caption = f"{bound.name.upper()} of the requests sent in each window; dashed: {bound.word} at most "
        caption += f"{1000 * bound.seconds:,g} ms."
        charts.append(Chart(bound.name.upper(), "minutes", "ms", tuple(lines), caption, bound=1000 * bound.seconds))
    return charts


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


def _table(windows: Sequence[WindowVerdict]) -> str:
    heads = [
        "from",
        "requests/s",
        "hits",
        *(f"{each.bound.word} ms" for each in windows[0].seen),
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
            *(f"{1000 * each.figure.middle:,.0f}" for each in judged.seen),
            f"{window.most_waiting:,}",
            f"{100 * window.most_kv_usage:.0f} %",
            f"{100 * judged.confidence:.0f} %",
        ]
        look = "" if judged.keeps else ' class="miss"'
        rows.append(f"<tr{look}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="windows"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


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
