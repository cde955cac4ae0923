"""Numbers of a load as people write them: ``1e3`` or ``1,000`` users, ``12/s`` or ``720/min`` requests, ``$60``."""

from __future__ import annotations

import re
from typing import Final

from kvplan.errors import UsageError

_NUMBER: Final = re.compile(r"[+-]?(?:\d{1,3}(?:[,_]\d{3})+|\d+)?(?:\.\d+)?(?:e[+-]?\d{1,3})?|[+-]?(?:inf|nan)")
_PER: Final = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
"""Seconds of what a rate may be for."""


def read_users(written: float | str | None) -> int | None:
    """``1e3``, ``1,000`` or 1000 -> 1000. UsageError for what is no whole number."""
    if written is None:
        return None
    number = _number(written)
    if number is None or number != number or number in (float("inf"), float("-inf")) or number != int(number):
        raise UsageError("Invalid value for '--users': it must be a whole number.", hint="for example --users 40")
    return int(number)


def read_rate(written: float | str | None) -> float | None:
    """``12/s``, ``720/min`` or 12 -> 12.0 per second. UsageError for anything else."""
    if written is None:
        return None
    text, slash, unit = str(written).lower().removesuffix("req/s").partition("/")
    if not slash:
        text, unit = text.removesuffix("rps"), "s"
    number = _number(text)
    if number is None or unit.strip() not in _PER:
        raise UsageError(
            "Invalid value for '--request-rate': it must be a number.", hint="requests per second, such as 12 or 12/s"
        )
    return number / _PER[unit.strip()]


def read_dollars(written: float | str | None) -> float | None:
    """``$60``, ``60/h`` or 60 -> 60.0 US dollars per hour. UsageError for anything else."""
    if written is None:
        return None
    text, _, unit = str(written).lower().replace("usd", "").replace("$", "").partition("/")
    number = _number(text)
    if number is None or unit.strip() not in ("", "h", "hr", "hour"):
        raise UsageError(
            "Invalid value for '--budget': it must be a number.", hint="US dollars per hour, such as --budget 60"
        )
    return number


def _number(written: float | str) -> float | None:
    text = str(written).strip().lower()
    if not text or _NUMBER.fullmatch(text) is None:
        return None
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None
