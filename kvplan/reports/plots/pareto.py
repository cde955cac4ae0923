"""What one user sees against what the device gives: tokens/s per user and tokens/s of all, with the Pareto front."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.reports.plots.canvas import INK, finish, from_zero, say, thousands
from kvplan.reports.plots.throughput import LINE_LOOKS
from kvplan.reports.selection import UserPoint, pareto_front, user_points
from kvplan.reports.statuses import VERMILION
from kvplan.reports.wording import plural, short_number
from kvplan.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(run: Run, figure: Figure) -> str:
    """A mark per measured setting (median of its runs); the front is joined and labelled with max_num_seqs."""
    points = user_points(run.measured)
    if not points:
        return say(figure, run, "No trial was served: there is no trade-off to show.")
    axes = figure.subplots()
    for place, size in enumerate(sorted({point.trial.number("block_size") or 0.0 for point in points})):
        _marks(axes, [point for point in points if (point.trial.number("block_size") or 0.0) == size], size, place)
    front = pareto_front(points)
    axes.plot([p.one_user for p in front], [p.all_users for p in front], color=VERMILION, linewidth=1.6, zorder=2,
              label="Pareto front")  # fmt: skip
    if any(point.trial.row.get("slo_pass") is False for point in points):
        axes.scatter([], [], s=34, facecolors="white", edgecolors=INK, label="hollow: misses the service level")
    _labels(axes, front)
    from_zero(axes, 1.05 * max(point.all_users for point in points))
    axes.set_xlim(0, 1.15 * max(point.one_user for point in points))
    axes.xaxis.set_major_formatter(thousands())
    axes.set_xlabel("tokens/s that one user sees (1 / median TPOT)")
    axes.set_ylabel("output throughput of all users (tokens/s)")
    axes.legend(loc="best")
    return finish(figure, run, _finding(front, len(points)))


def _marks(axes: Axes, points: list[UserPoint], size: float, place: int) -> None:
    """Full marks; hollow ones for settings that miss the service level, where one was given."""
    colour, marker, _ = LINE_LOOKS[place % len(LINE_LOOKS)]
    faces = ["white" if point.trial.row.get("slo_pass") is False else colour for point in points]
    axes.scatter([p.one_user for p in points], [p.all_users for p in points], s=34, marker=marker, facecolors=faces,
                 edgecolors=colour, alpha=0.75, linewidth=1.2, zorder=3)  # fmt: skip
    axes.scatter([], [], s=34, marker=marker, color=colour, label=f"block_size {short_number(size)}")


def _labels(axes: Axes, front: list[UserPoint]) -> None:
    """max_num_seqs beside the front's points, those left out that would sit on the last one written."""
    highest = max(point.all_users for point in front) or 1.0
    widest = max(point.one_user for point in front)
    last = (-1.0, -1.0)
    for point in front:
        here = point.one_user / widest, point.all_users / highest
        if abs(here[0] - last[0]) < 0.05 and abs(here[1] - last[1]) < 0.06:
            continue
        text = f"max_num_seqs {short_number(point.trial.number('max_num_seqs'))}"
        axes.annotate(text, (point.one_user, point.all_users), textcoords="offset points", xytext=(7, 5), fontsize=8)
        last = here


def _finding(front: list[UserPoint], num_settings: int) -> str:
    most, fastest = front[0], front[-1]
    all_users, one_user = short_number(most.all_users), short_number(most.one_user)
    if num_settings == 1:
        return f"{all_users} tokens/s, {one_user} for each user: the only setting that was served"
    if len(front) == 1:
        return (
            f"One of {plural(num_settings, 'setting')} is best in both: {all_users} tokens/s, {one_user} for each user"
        )
    fewer, faster = short_number(fastest.all_users), short_number(fastest.one_user)
    return f"From {all_users} tokens/s with {one_user} per user to {fewer} with {faster} per user"
