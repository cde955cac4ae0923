"""Arrival times of request files: dates, or numbers whose unit is stated, documented, or decided by the times.

``timestamp`` is milliseconds in Mooncake's traces and AIPerf's, and seconds in Bailian's and ServeGen's. So where a
column neither names its unit nor belongs to a format whose publisher does, the unit follows from the times themselves:

* From 1e9 on a number is taken for the time since 1970, in the unit that puts it into the years 2001 to 2096.
* A mean gap of at least 100 between requests is milliseconds: in seconds fewer than 36 requests would come in an hour.
* A mean gap of at most 1 is seconds: in milliseconds more than 1,000 requests would come in a second.
* Between the two both are possible. Whole numbers beside ``input_length`` are milliseconds, as Mooncake and AIPerf
  write them, and all others are seconds; the answer says that it could be either.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import Any, Final

_TIMESTAMP: Final = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d{1,12})?\s*(Z|[+-]\d\d:?\d\d)?")
LONGEST_SECONDS: Final = 1e9
"""Between the first request and the last: 30 years."""
_FIRST_EPOCH: Final = 1e9
_LAST_EPOCH: Final = 4e9
_SURELY_MILLISECONDS: Final = 100.0
_SURELY_SECONDS: Final = 1.0
_SHARE_A_MOMENT: Final = 2
_FEWEST: Final = 50
"""Times from which on a clock is judged."""


class TimeUnit(Enum):
    """The value: how many make a second."""

    seconds = 1
    milliseconds = 1_000
    microseconds = 1_000_000
    nanoseconds = 1_000_000_000


UNITS: Final = {
    "s": TimeUnit.seconds,
    "ms": TimeUnit.milliseconds,
    "us": TimeUnit.microseconds,
    "ns": TimeUnit.nanoseconds,
}
"""As ``--trace-unit`` takes them."""
_ENDINGS: Final = {
    **UNITS,
    "sec": TimeUnit.seconds,
    "secs": TimeUnit.seconds,
    "seconds": TimeUnit.seconds,
    "millis": TimeUnit.milliseconds,
    "milliseconds": TimeUnit.milliseconds,
    "microseconds": TimeUnit.microseconds,
    "nanos": TimeUnit.nanoseconds,
    "nanoseconds": TimeUnit.nanoseconds,
}


def unit_in_name(name: str) -> TimeUnit | None:
    """``arrival_ms`` -> milliseconds; None for ``timestamp``."""
    return _ENDINGS.get(name.rpartition("_")[2]) if "_" in name else None


@dataclass(slots=True)
class TimesSeen:
    """What a file's times are, seen one after the other.

    are_dates: they are written as dates, and read as seconds since 1970. num_earlier: those before the one above them;
    num_moments: those that are not that one's.
    """

    count: int = 0
    first: float = math.inf
    last: float = -math.inf
    are_dates: bool = False
    have_fractions: bool = False
    num_earlier: int = 0
    num_moments: int = 0
    _before: float = -math.inf

    def see(self, value: float) -> None:
        self.count += 1
        if value < self.first:
            self.first = value
        if value > self.last:
            self.last = value
        if value < self._before:
            self.num_earlier += 1
        self.num_moments += value != self._before
        self._before = value
        if not self.have_fractions and value != int(value):
            self.have_fractions = True

    @property
    def tick(self) -> float | None:
        """What a coarse clock goes on by, on average, in their own unit; None where no clock looks coarse.

        That is one by which the times do not go back and two requests or more share a moment on average.
        """
        if self.num_earlier or self.num_moments < 2 or self.count < max(_SHARE_A_MOMENT * self.num_moments, _FEWEST):
            return None
        return self.span / (self.num_moments - 1)

    @property
    def span(self) -> float:
        """From the first to the last, in their own unit."""
        return self.last - self.first if self.count else 0.0


@dataclass(frozen=True, slots=True)
class DecidedUnit:
    """reason: for people, empty where the unit was stated or documented, or is that of dates."""

    unit: TimeUnit
    reason: str = ""


def decide_unit(seen: TimesSeen, stated: TimeUnit | None, *, is_like_mooncake: bool) -> DecidedUnit:
    """Decide by the rules above. stated: by the user, the column's name or the format."""
    if seen.are_dates:
        return DecidedUnit(TimeUnit.seconds)
    if stated is not None:
        return DecidedUnit(stated)
    if (since_1970 := _epoch_unit(seen)) is not None:
        return DecidedUnit(since_1970, "counted from 1970")
    gap = seen.span / max(seen.count - 1, 1)
    if gap >= _SURELY_MILLISECONDS:
        return DecidedUnit(TimeUnit.milliseconds, f"in seconds, one request would come in {gap:,.0f} s")
    if gap <= _SURELY_SECONDS:
        reason = f"in milliseconds, {1000 / gap:,.0f} would come in a second" if gap else ""
        return DecidedUnit(TimeUnit.seconds, reason)
    if is_like_mooncake and not seen.have_fractions:
        return DecidedUnit(TimeUnit.milliseconds, "as Mooncake's are; --trace-unit s if they are seconds")
    return DecidedUnit(TimeUnit.seconds, "they could be milliseconds: --trace-unit ms")


def _epoch_unit(seen: TimesSeen) -> TimeUnit | None:
    if seen.first < _FIRST_EPOCH:
        return None
    units = (each for each in TimeUnit if _FIRST_EPOCH <= seen.first / each.value < seen.last / each.value + 1)
    return next((each for each in units if seen.last / each.value < _LAST_EPOCH), None)


def read_time(value: Any) -> tuple[float, bool]:
    """(the number, whether it is a date). ValueError with a phrase for what is neither, or is not finite."""
    if isinstance(value, str):
        text = value.strip()
        try:
            number = float(text)
        except ValueError:
            return _seconds_since_1970(text), True
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    else:
        raise ValueError(f"its time is {value!r}, neither a number nor a date")
    if not math.isfinite(number):
        raise ValueError(f"its time is {number}, and must be finite")
    return number, False


def _seconds_since_1970(text: str) -> float:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"its time is {text[:40]!r}, neither a number nor a date")
    zone = (match[4] or "Z").replace("Z", "+00:00")
    # Before Python 3.11 datetime reads only three or six fractional digits and no 'Z', and Azure writes seven.
    written = f"{match[1]} {match[2]}{zone if ':' in zone else f'{zone[:3]}:{zone[3:]}'}"
    try:
        whole = datetime.fromisoformat(written).astimezone(timezone.utc).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"its time is {text[:40]!r}, and there is no such date") from None
    return whole + float(f"0{match[3] or '.0'}")
