"""How requests of a load follow and resemble each other: pauses of users, and how lengths spread."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, get_args

from kvplan.errors import UsageError
from kvplan.estimate.speed.queueing.loads import Spread

_DURATION: Final = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,9})?)\s*(?P<unit>ms|s|m|min|)")
_UNITS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0}
SPREADS: Final = tuple(each for each in get_args(Spread) if each != "quantiles")


@dataclass(frozen=True, slots=True)
class LoadPattern:
    """``think_seconds``: a user's mean pause between an answer and the next request. ``length_spread``: of prompts and
    answers, uniform from two thirds of the mean to four thirds where nothing is said."""

    think_seconds: float = 0.0
    length_spread: Spread = "uniform"

    def sentence(self, *, of_users: bool) -> str:
        """What is assumed of a load, for people."""
        who = "Requests arrive independently of each other"
        if of_users:
            who = "Every user always has a request in progress"
            if self.think_seconds:
                who = f"Every user thinks for {self.think_seconds:g} s on average before the next request"
        return f"{who}, and no prompt shares a prefix with another."


def load_pattern(*, think_time: str | None = None, length_spread: str | None = None) -> LoadPattern:
    """The pattern that options of ``kvplan plan`` describe. UsageError for a value that cannot be read."""
    default = LoadPattern()
    return LoadPattern(
        think_seconds=_seconds(think_time, "--think-time"),
        length_spread=default.length_spread if length_spread is None else _spread(length_spread),
    )


def _spread(text: str) -> Spread:
    for each in SPREADS:
        if text.strip().casefold() == each:
            return each
    raise UsageError(f"Unknown --length-spread '{text}'.", hint="one of " + ", ".join(SPREADS))


def _seconds(text: str | None, option: str) -> float:
    """``20``, ``20s``, ``500ms`` or ``1.5m`` -> seconds; nothing -> 0. UsageError for anything else."""
    if text is None:
        return 0.0
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option} '{text}' is not a number of seconds.", hint=f"for example {option} 20s")
    return float(found["number"]) * _UNITS[found["unit"] or "s"]
