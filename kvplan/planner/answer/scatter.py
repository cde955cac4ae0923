"""Marks in a plane as SVG, those that stand out with their names beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, NamedTuple

from kvplan.planner.answer.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, ChartCoordinates, axes, ticks

_LETTER: Final = 6.6
_LINE: Final = 14.0
_AWAY: Final = 9.0


@dataclass(frozen=True, slots=True)
class Mark:
    """is_full: it gives what was asked for; is_best: a star. label: its name, "" for none."""

    x: float
    y: float
    label: str = ""
    is_full: bool = True
    is_best: bool = False


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def scatter(found: Chart, marks: Sequence[Mark]) -> str:
    """The chart's axes with ``marks``. A name that would lie on another or on a mark is left out."""
    xs, ys = [each.x for each in marks], [each.y for each in marks]
    y_ticks = ticks(0.0, max(max(ys), 1e-9))
    x_ticks = ticks(0.0, max(max(xs), 1e-9))
    place = ChartCoordinates(0.0, x_ticks[-1], y_ticks[-1])
    parts = axes(found, place, y_ticks)
    taken = [_box(place.x(each.x), place.y(each.y)) for each in marks]
    for each in marks:
        parts.append(_drawn(each, place))
    for each in sorted(marks, key=lambda mark: not mark.is_best):
        if each.label:
            parts += _named(each, place, taken)
    label = escape(f"{found.title}: {found.caption}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _box(x: float, y: float) -> _Box:
    return _Box(x - 6, y - 6, x + 6, y + 6)


def _drawn(mark: Mark, place: ChartCoordinates) -> str:
    x, y = place.x(mark.x), place.y(mark.y)
    colour = "var(--c)" if mark.is_full else "var(--f)"
    fill = colour if mark.is_full else "none"
    title = f"<title>{escape(mark.label)}</title>" if mark.label else ""
    if mark.is_best:
        points = "0,-9 2.6,-3 9,-2.6 4.2,1.6 5.6,8 0,4.6 -5.6,8 -4.2,1.6 -9,-2.6 -2.6,-3"
        return (
            f'<polygon points="{points}" transform="translate({x:.1f} {y:.1f})" fill="{fill}" stroke="{colour}" '
            f'stroke-width="1.5">{title}</polygon>'
        )
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" stroke="{colour}" stroke-width="1.5">{title}</circle>'
    )


def _named(mark: Mark, place: ChartCoordinates, taken: list[_Box]) -> list[str]:
    """The name beside, above or below the mark, where that is free; [] where nothing is."""
    x, y, width = place.x(mark.x), place.y(mark.y), _LETTER * len(mark.label)
    away = 1.5 * _AWAY if mark.is_best else _AWAY
    places = {
        "start": (x + away, (4.0, -5.0, 13.0)),
        "end": (x - away, (4.0, -5.0, 13.0)),
        "middle": (x, (-12.0, 22.0)),
    }
    for anchor, (at, downs) in places.items():
        start = at - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        for down in downs:
            box = _Box(start, y + down - _LINE + 4, start + width, y + down + 3)
            inside = (
                box.left >= LEFT and box.right <= WIDTH - RIGHT and box.top >= TOP - 8 and box.bottom < HEIGHT - BOTTOM
            )
            if inside and not any(box.meets(other) for other in taken):
                taken.append(box)
                ink = ' style="fill:var(--ink)"' if mark.is_best else ""
                return [
                    f'<text class="name" x="{at:.1f}" y="{y + down:.1f}" font-size="11" text-anchor="{anchor}"{ink}>'
                    f"{escape(mark.label)}</text>"
                ]
    return []
