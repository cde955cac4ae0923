"""Puts short labels beside points so that none is on top of another, of a mark, or outside the axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvplan.reports.plots.canvas import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TYPE_POINTS: Final = 9.0
_MARK_POINTS: Final = 4.0
# Distances from the mark, tried from near to far; from the second on a line leads to the mark.
_RADII_POINTS: Final = (9.0, 17.0, 26.0, 38.0)
# Right and above first.
_ANGLES: Final = (45, 0, 90, -45, 135, 180, -90, -135)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in points of the figure: centre and size."""

    x: float
    y: float
    width: float
    height: float

    def touches(self, other: Box) -> bool:
        near_x = abs(self.x - other.x) < (self.width + other.width) / 2
        return near_x and abs(self.y - other.y) < (self.height + other.height) / 2

    def within(self, other: Box) -> bool:
        fits_x = abs(self.x - other.x) + self.width / 2 <= other.width / 2
        return fits_x and abs(self.y - other.y) + self.height / 2 <= other.height / 2


def place_labels(
    axes: Axes,
    labelled: Sequence[tuple[float, float, str]],
    marks: Sequence[tuple[float, float]],
    angles: Sequence[int] = _ANGLES,
) -> list[Box]:
    """Write each label of ``labelled`` (x, y, text in data units) where it covers neither ``marks`` nor another label;
    a label that finds no such place is left out. angles: directions from the mark in degrees, in the order in which
    they are tried. Call when nothing else changes the layout. Returns the labels' boxes.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None, "axes belong to a figure"
    figure.draw_without_rendering()
    to_points = 72 / figure.dpi

    def box(x: float, y: float, width: float, height: float) -> Box:
        across, up = axes.transData.transform((x, y)) * to_points
        return Box(across, up, width, height)

    low, high = (corner * to_points for corner in axes.transAxes.transform([(0, 0), (1, 1)]))
    frame = Box(*((low + high) / 2), *(high - low))
    taken = [box(x, y, 2 * _MARK_POINTS, 2 * _MARK_POINTS) for x, y in marks]
    placed = []
    for x, y, text in labelled:
        mark = box(x, y, 0.65 * _TYPE_POINTS * len(text), 1.15 * _TYPE_POINTS)
        free = next(
            (b for b in _around(mark, angles) if b.within(frame) and not any(b.touches(t) for t in taken)), None
        )
        if free is not None:
            _write(axes, (x, y), text, (free.x - mark.x, free.y - mark.y))
            taken.append(free)
            placed.append(free)
    return placed


def _around(mark: Box, angles: Sequence[int]) -> Iterator[Box]:
    for radius in _RADII_POINTS:
        for angle in angles:
            across, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            yield Box(mark.x + radius * across, mark.y + radius * up, mark.width, mark.height)


def _write(axes: Axes, point: tuple[float, float], text: str, offset: tuple[float, float]) -> None:
    is_far = math.hypot(*offset) > _RADII_POINTS[0] + 1
    line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 3} if is_far else None
    written = axes.annotate(text, point, xytext=offset, textcoords="offset points", ha="center", va="center",
                            fontsize=_TYPE_POINTS, fontweight="bold", color=INK, arrowprops=line, zorder=5)  # fmt: skip
    written.set_in_layout(False)
