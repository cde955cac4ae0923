"""Numbers as the page shows them. Ranges come as [low, high] or [low, middle, high]."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.units import format_tokens


def number(value: float) -> str:
    """``1,234``, ``27.2``, ``4.96``: three digits, or all that stand before the point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def span(ends: Sequence[float | None], unit: str = "") -> str:
    """``13.8 to 22.6 ms``; the outer two of three; a dash where nothing is known."""
    low, high = ends[0], ends[-1]
    after = f" {unit}" if unit else ""
    if low is None:
        return "-"
    if high is None:
        return f"from {number(low)}{after}"
    first, last = number(low), number(high)
    return f"{first}{after}" if first == last else f"{first} to {last}{after}"


def usd_span(ends: Sequence[float]) -> str:
    """``$4.92 to $9.13``."""
    low, high = (f"${end:,.2f}" for end in (ends[0], ends[-1]))
    return low if low == high else f"{low} to {high}"


def tokens(count: int) -> str:
    """``16k tokens``."""
    return f"{format_tokens(count)} token{'' if count == 1 else 's'}"


def parameters(count: int) -> str:
    """``8.03 B``, ``124 M``."""
    return f"{count / 1e9:,.3g} B" if count >= 1e9 else f"{count / 1e6:,.3g} M"
