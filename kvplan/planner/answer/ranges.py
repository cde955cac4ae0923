"""A figure and its interval as text."""

from __future__ import annotations

import math
from collections.abc import Callable

from kvplan.estimate.speed.latency import Range
from kvplan.planner.choices.verdict import Figure


def span(low: float, high: float, form: str, *, least: float = 0.0, most: float = math.inf) -> str:
    """``30-80``; one number where both read alike. Neither is rounded below ``least`` or above ``most``."""
    first, last = _rounded(low, form, math.ceil, least, most), _rounded(high, form, math.floor, least, most)
    return first if first == last else f"{first}-{last}"


def _rounded(value: float, form: str, inwards: Callable[[float], int], least: float, most: float) -> str:
    text = format(value, form)
    if least <= float(text.replace(",", "")) <= most:
        return text
    unit = 10.0 ** int(form[form.index(".") + 1 : -1])
    return format(inwards(value * unit) / unit, form)


def within(value: float, ends: Range | None, unit: float = 1.0) -> str:
    """``45 (30-80)``: a figure and its interval; the value alone where nothing was compared."""
    value *= unit
    if ends is None:
        return format(value, ",.3g") if value < 10 else format(value, ",.0f")
    form = ",.1f" if value < 10 else ",.0f"
    text, between = (
        _rounded(value, form, math.floor, 0.0, unit * ends.most),
        span(unit * ends.low, unit * ends.high, form, least=unit * ends.least, most=unit * ends.most),
    )
    return text if text == between else f"{text} ({between})"


def milliseconds(found: Figure | None) -> str:
    """``45 (30-80)`` of a figure in seconds; ``-`` where there is none."""
    return "-" if found is None else within(found.middle, found.between, 1000)
