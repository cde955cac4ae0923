"""Tokens/s that one user sees against tokens/s of all users, with the Pareto front."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from kvplan.reports.looks import VERMILION
from kvplan.reports.plots.canvas import INK, finish, from_zero, say, thousands
from kvplan.reports.plots.throughput import LINE_LOOKS
from kvplan.reports.selection import pareto_front, user_points
from kvplan.reports.wording import plural, short_number
from kvplan.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(run: Run, figure: Figure) -> str:
    """A mark per measured setting (median of its runs); the front is joined and labelled with max_num_seqs."""
    points = user_points(run.measured)
    if points.empty:
        return say(figure, run, "No trial was served, so there is no trade-off to show.")
    axes = figure.subplots()
    for place, (size, group) in enumerate(points.groupby("block_size", dropna=False)):
        _marks(axes, group, size, place)
    front = pareto_front(points)
    axes.plot(front["one_user"], front["all_users"], color=VERMILION, linewidth=1.6, zorder=2, label="Pareto front")
    if _misses_slo(points).any():
        axes.scatter([], [], s=34, facecolors="white", edgecolors=INK, label="hollow: misses the SLO")
    _labels(axes, front)
    from_zero(axes, 1.05 * points["all_users"].max())
    axes.set_xlim(0, 1.15 * points["one_user"].max())
    axes.xaxis.set_major_formatter(thousands())
    axes.set_xlabel("tokens/s per user (1 / median TPOT)")
    axes.set_ylabel("output throughput of all users (tokens/s)")
    axes.legend(loc="best")
    return finish(figure, run, _finding(front, len(points)))


def _misses_slo(points: pd.DataFrame) -> pd.Series:
    """True for settings that miss the SLO; False also where none was given."""
    return ~points["slo_pass"].fillna(True).astype(bool)


def _marks(axes: Axes, points: pd.DataFrame, size: float, place: int) -> None:
    """Full marks; hollow ones for settings that miss the SLO, where one was given."""
    colour, marker, _ = LINE_LOOKS[place % len(LINE_LOOKS)]
    faces = np.where(_misses_slo(points), "white", colour).tolist()
    axes.scatter(points["one_user"], points["all_users"], s=34, marker=marker, facecolors=faces, edgecolors=colour,
                 alpha=0.75, linewidth=1.2, zorder=3)  # fmt: skip
    axes.scatter([], [], s=34, marker=marker, color=colour, label=f"block_size {short_number(size)}")


def _labels(axes: Axes, front: pd.DataFrame) -> None:
    """max_num_seqs next to the points of the front, except where a label would be on top of the last one."""
    highest, widest = front["all_users"].max() or 1.0, front["one_user"].max()
    last = (-1.0, -1.0)
    for point in front.itertuples():
        here = point.one_user / widest, point.all_users / highest
        if abs(here[0] - last[0]) < 0.05 and abs(here[1] - last[1]) < 0.06:
            continue
        text = f"max_num_seqs {short_number(point.max_num_seqs)}"
        axes.annotate(text, (point.one_user, point.all_users), textcoords="offset points", xytext=(7, 5), fontsize=8)
        last = here


def _finding(front: pd.DataFrame, num_settings: int) -> str:
    slow, fast = front.iloc[0], front.iloc[-1]
    all_users, one_user = short_number(slow["all_users"]), short_number(slow["one_user"])
    if num_settings == 1:
        return f"{all_users} tokens/s, {one_user} per user: the only setting that was served"
    if len(front) == 1:
        return f"One of {plural(num_settings, 'setting')} is best at both: {all_users} tokens/s, {one_user} per user"
    fewer, faster = short_number(fast["all_users"]), short_number(fast["one_user"])
    return f"From {all_users} tokens/s at {one_user} per user to {fewer} tokens/s at {faster} per user"
