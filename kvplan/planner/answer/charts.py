"""Line charts as SVG, in the colours of the page around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, NamedTuple

_LETTER: Final = 6.6
_LINE: Final = 14.0
_AWAY: Final = 9.0
WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 28, 36
_TICKS: Final = 5
_ROUND: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Line:
    """points: (x, y), in order of x. colour: the name of one of the page's. band: (x, low, high) of what is shaded."""

    label: str
    points: tuple[tuple[float, float], ...]
    colour: str
    has_dots: bool = False
    band: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """bound: a level that is drawn dashed. top: of the axis of y; None: what the lines need."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    caption: str
    bound: float | None = None
    top: float | None = None


def chart(found: Chart) -> str:
    """One chart as an ``svg`` element, with a title that is read aloud."""
    points = [point for line in found.lines for point in line.points]
    xs = [x for x, _ in points] or [0.0, 1.0]
    low, high = min(xs), max(xs)
    if high == low:
        low, high = low - 1, high + 1
    highest = [high for line in found.lines for _, _, high in line.band]
    needed = max([y for _, y in points] + highest + [found.bound or 0.0, 1e-9])
    marks = ticks(0.0, found.top or needed)
    top = found.top or max(marks[-1], needed)
    place = ChartCoordinates(low, high, top)
    parts = [*axes(found, place, marks), *_legend(found)]
    if found.bound is not None:
        y = place.y(found.bound)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--bound)" '
            'stroke-width="1.5" stroke-dasharray="6 4"/>'
        )
    for line in found.lines:
        parts += _drawn(line, place)
    label = escape(f"{found.title}: {found.caption}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


@dataclass(frozen=True, slots=True)
class ChartCoordinates:
    """Map values to places in the picture."""

    low: float
    high: float
    top: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.low) / (self.high - self.low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - min(value / self.top, 1.0) * (HEIGHT - TOP - BOTTOM)


def _drawn(line: Line, place: ChartCoordinates) -> list[str]:
    colour = f"var(--{line.colour})"
    path = " ".join(f"{place.x(x):.1f},{place.y(y):.1f}" for x, y in line.points)
    parts = []
    if line.band:
        around = [(x, low) for x, low, _ in line.band] + [(x, high) for x, _, high in reversed(line.band)]
        edge = " ".join(f"{place.x(x):.1f},{place.y(y):.1f}" for x, y in around)
        parts.append(f'<polygon points="{edge}" fill="{colour}" opacity="0.15"/>')
    parts.append(
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linejoin="round"/>'
    )
    if line.has_dots:
        parts += [
            f'<circle cx="{place.x(x):.1f}" cy="{place.y(y):.1f}" r="4" fill="{colour}"/>' for x, y in line.points
        ]
    return parts


def axes(found: Chart, place: ChartCoordinates, marks: Sequence[float]) -> list[str]:
    """The chart's title, units and grid, with a line at each of ``marks``."""
    title, unit = escape(found.title), escape(found.y_label)
    parts = [
        f'<text x="{LEFT}" y="14" font-size="14"><tspan style="fill:var(--ink)">{title}</tspan>'
        f'<tspan font-size="11" dx="8">{unit}</tspan></text>'
    ]
    for tick in marks:
        y = place.y(tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--grid)"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" font-size="11" text-anchor="end">{_number(tick)}</text>')
    bottom = HEIGHT - BOTTOM
    for tick in ticks(place.low, place.high):
        if place.low <= tick <= place.high:
            parts.append(
                f'<text x="{place.x(tick):.1f}" y="{bottom + 15}" font-size="11" text-anchor="middle">'
                f"{_number(tick)}</text>"
            )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 4}" font-size="11" text-anchor="middle">{escape(found.x_label)}</text>'
    )
    return parts


def _legend(found: Chart) -> list[str]:
    """Names of the lines, from the right edge to the left."""
    parts, right = [], float(WIDTH - RIGHT)
    for line in reversed(found.lines):
        parts.append(f'<text x="{right}" y="14" font-size="11" text-anchor="end">{escape(line.label)}</text>')
        right -= 7.6 * len(line.label) + 6
        parts.append(
            f'<line x1="{right - 14}" x2="{right}" y1="10" y2="10" stroke="var(--{line.colour})" stroke-width="2.5"/>'
        )
        right -= 24
    return parts


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from ``low`` on that reach ``high``."""
    rough = (high - low) / _TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(each * unit for each in _ROUND if each * unit >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.ceil(high / step - 1e-9) + 1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.3g}"


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
        parts.append(_drawn_marks(each, place))
    for each in sorted(marks, key=lambda mark: not mark.is_best):
        if each.label:
            parts += _named(each, place, taken)
    label = escape(f"{found.title}: {found.caption}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _box(x: float, y: float) -> _Box:
    return _Box(x - 6, y - 6, x + 6, y + 6)


def _drawn_marks(mark: Mark, place: ChartCoordinates) -> str:
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
