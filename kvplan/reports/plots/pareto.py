"""Tokens/s that one user sees against tokens/s of all users, with the Pareto front."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from kvplan.reports.looks import VERMILION
from kvplan.reports.plots.canvas import INK, finish, from_zero, outer_legend, thousands
from kvplan.reports.plots.labels import place_labels
from kvplan.reports.plots.throughput import LINE_LOOKS
from kvplan.reports.selection import SETTING_COLUMNS, pareto_front, user_points
from kvplan.reports.wording import plural, setting, short_number
from kvplan.runs.storage.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What the marks tell apart: the first of these that was varied.
_MARKED: Final = (
    "block_size",
    "quantization",
    "kv_cache_dtype",
    "dtype",
    "max_loras",
    "num_speculative_tokens",
    "max_num_batched_tokens",
    "max_model_len",
)
# Points of a longer front are thinned: a key of more lines is not read.
_MOST_NUMBERS: Final = 9


def draw(run: Run, figure: Figure) -> str | None:
    """A mark per comparable setting (median of its runs); the points of the front are joined and numbered, and a key
    names their settings. None where fewer than two were measured."""
    points = user_points(run.comparable)
    if len(points) < 2:
        return None
    front = pareto_front(points)
    # The points that get a number: both ends, and between them as many as the key has room for.
    count = min(len(front), _MOST_NUMBERS)
    numbered = front.iloc[np.unique(np.linspace(0, len(front) - 1, count).round().astype(int))]
    axes = figure.subplots()
    _draw_points(axes, points, front)
    from_zero(axes, 1.05 * points["all_users"].max())
    axes.set_xlim(0, 1.15 * points["one_user"].max())
    axes.xaxis.set_major_formatter(thousands())
    axes.set_xlabel("tokens/s per user (1 / median TPOT)")
    axes.set_ylabel("tokens/s of all users")
    _keys(axes, numbered, points)
    finding = finish(figure, run, _finding(front, len(points)), compares_speeds=True)
    if len(front) > 1:
        places = zip(numbered["one_user"], numbered["all_users"], map(str, itertools.count(1)), strict=False)
        place_labels(axes, list(places), list(zip(points["one_user"], points["all_users"], strict=True)))
    return finding


def _draw_points(axes: Axes, points: pd.DataFrame, front: pd.DataFrame) -> None:
    for place, (label, group) in enumerate(_groups(points)):
        _marks(axes, group, label, place)
    if len(front) > 1:
        axes.plot(front["one_user"], front["all_users"], color=VERMILION, linewidth=1.6, zorder=2, label="Pareto front")
    if _misses_slo(points).any():
        axes.scatter([], [], s=34, facecolors="white", edgecolors=INK, label="hollow: misses the SLO")


def _groups(points: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """(label, points) for every value of the setting that the marks tell apart; '' where none was varied."""
    name = next((name for name in _MARKED if 1 < points[name].nunique() <= len(LINE_LOOKS)), None)
    if name is None:
        yield "", points
        return
    for value, group in points.groupby(name, dropna=False):
        yield f"{name} {setting(value)}", group


def _misses_slo(points: pd.DataFrame) -> pd.Series:
    """True for settings that miss the SLO; False also where none was given."""
    return ~points["slo_pass"].fillna(True).astype(bool)


def _marks(axes: Axes, points: pd.DataFrame, label: str, place: int) -> None:
    """Full marks; hollow ones for settings that miss the SLO, where one was given."""
    colour, marker, _ = LINE_LOOKS[place % len(LINE_LOOKS)]
    faces = np.where(_misses_slo(points), "white", colour).tolist()
    axes.scatter(points["one_user"], points["all_users"], s=34, marker=marker, facecolors=faces, edgecolors=colour,
                 alpha=0.75, linewidth=1.2, zorder=3)  # fmt: skip
    if label:
        axes.scatter([], [], s=34, marker=marker, color=colour, label=label)


def _keys(axes: Axes, numbered: pd.DataFrame, points: pd.DataFrame) -> None:
    """What marks and numbers mean."""
    from matplotlib.lines import Line2D

    handles, labels = axes.get_legend_handles_labels()
    differing = [name for name in SETTING_COLUMNS if points[name].nunique() > 1]
    if len(numbered) > 1:
        handles.append(Line2D([], [], linestyle=""))
        labels.append("\n".join(["Points of the front:", *differing]))
        for place, point in enumerate(numbered.to_dict("records"), start=1):
            handles.append(Line2D([], [], linestyle=""))
            labels.append(f"{place}:  " + ", ".join(setting(point[name]) or "–" for name in differing))
    if labels:
        outer_legend(axes, handles, labels)


def _finding(front: pd.DataFrame, num_settings: int) -> str:
    slow, fast = front.iloc[0], front.iloc[-1]
    all_users, one_user = short_number(slow["all_users"]), short_number(slow["one_user"])
    if len(front) == 1:
        return f"One of {plural(num_settings, 'setting')} is best at both: {all_users} tokens/s, {one_user} per user"
    fewer, faster = short_number(fast["all_users"]), short_number(fast["one_user"])
    return f"From {all_users} tokens/s at {one_user} per user to {fewer} tokens/s at {faster} per user"
