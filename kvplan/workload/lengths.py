"""How long prompts and answers are: constant, uniform over a range, or log-normal like real traffic."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvplan.errors import UsageError
from kvplan.units import parse_tokens

if TYPE_CHECKING:
    import numpy as np

_HINT: Final = "write 128, a range such as 64..256, or lognormal:MEDIAN:SIGMA such as lognormal:200:0.8"
_RANGE: Final = re.compile(r"[^.]+(\.\.[^.]+)?")
LONGEST: Final = 100_000_000
"""The longest prompt or answer, in tokens: ten times the longest context of any model."""
LARGEST_SIGMA: Final = 5
# A log-normal without given bounds is cut here: otherwise one request of a million tokens could be the whole workload.
_LONGEST_IN_MEDIANS: Final = 16


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths in tokens, first to last, both included: uniform, or with ``median`` and ``sigma`` log-normal.

    A log-normal length is median x exp(sigma x z) with a standard normal z, rounded and clamped to the bounds.
    """

    first: int
    last: int
    median: int | None = None
    sigma: float | None = None

    @staticmethod
    def parse(option: str, text: str) -> Lengths:
        """``128``, ``64..256``, ``lognormal:200:0.8`` or ``lognormal:200:0.8:16..2048``. UsageError otherwise."""
        if text.startswith("lognormal:"):
            return _lognormal(option, text)
        return _range(option, text, text)

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        """``count`` lengths; uses equally many random numbers whatever the distribution's parameters."""
        if self.median is None or self.sigma is None:
            return [int(length) for length in rng.integers(self.first, self.last + 1, size=count)]
        logarithms = math.log(self.median) + self.sigma * rng.standard_normal(count)
        return [min(max(round(math.exp(value)), self.first), self.last) for value in logarithms]

    def as_text(self) -> str:
        if self.median is not None:
            bounds = f":{self.first}..{self.last}" if (self.first, self.last) != _bounds_of(self.median) else ""
            return f"lognormal:{self.median}:{self.sigma:g}{bounds}"
        return str(self.first) if self.first == self.last else f"{self.first}..{self.last}"


def parse_length(option: str, text: str) -> int:
    """Tokens, as many as a prompt can have. UsageError otherwise."""
    length = parse_tokens(text)
    if length > LONGEST:
        raise UsageError(f"{option} '{text}' is more than {LONGEST:,} tokens.", hint="write it like 4096, 32k or 1m")
    return length


def _range(option: str, text: str, whole: str) -> Lengths:
    ends = [parse_length(option, part) for part in text.split("..")] if _RANGE.fullmatch(text) else []
    if not ends or ends[0] > ends[-1]:
        raise UsageError(f"{option} '{whole}' is not a length.", hint=_HINT)
    return Lengths(ends[0], ends[-1])


def _lognormal(option: str, text: str) -> Lengths:
    median_text, _, rest = text.removeprefix("lognormal:").partition(":")
    sigma_text, _, bounds = rest.partition(":")
    try:
        median, sigma = parse_length(option, median_text), float(sigma_text)
    except ValueError:
        raise UsageError(f"{option} '{text}' is not a length.", hint=_HINT) from None
    if not 0 < sigma <= LARGEST_SIGMA:
        raise UsageError(f"{option} '{text}' has a sigma outside 0 to 5.", hint=_HINT)
    first, last = _bounds_of(median)
    if bounds:
        within = _range(option, bounds, text)
        first, last = within.first, within.last
    return Lengths(first, last, median, sigma)


def _bounds_of(median: int) -> tuple[int, int]:
    return 1, min(_LONGEST_IN_MEDIANS * median, LONGEST)
