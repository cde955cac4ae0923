"""Prometheus' text format, as much of it as engines write: samples by name.

A page of vLLM has a thousand lines and is read four times per second, so lines whose name nobody asked for are left
before their labels are looked at. Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from kvplan.errors import KvplanError

# A name begins where no other one goes on: otherwise a long run of letters would be tried from each of them.
_LABEL: Final = re.compile(r'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_ESCAPE: Final = re.compile(r'\\[\\"n]')
_LARGEST: Final = 1e18
"""More is no figure of a server."""
_MOST_SERIES: Final = 20_000
"""Series of one name on a page: a thousand engines with twenty labels or buckets each."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: its labels and its value."""

    labels: Mapping[str, str]
    value: float


Samples = Mapping[str, list[Sample]]


def parse_samples(text: str, wanted: Container[str] | None = None) -> Samples:
    """The samples of a page by name, only those in ``wanted`` if it is given. What is no sample is skipped.

    So are samples without a figure: a page may hold NaN, of a summary that saw nothing, or an infinity. KvplanError for
    a page with more series of one name than any engine has.
    """
    found: dict[str, list[Sample]] = {}
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        brace = line.find("{")
        space = line.find(" ")
        ends = [end for end in (brace, space) if end >= 0]
        name = line[: min(ends)] if ends else line
        if wanted is not None and name not in wanted:
            continue
        sample = _sample(line[len(name) :].lstrip())
        if sample is None:
            continue
        series = found.setdefault(name, [])
        series.append(sample)
        if len(series) > _MOST_SERIES:
            raise KvplanError(f"A page of metrics has more than {_MOST_SERIES:,} series of one name.")
    return found


def _sample(rest: str) -> Sample | None:
    """What follows the name: ``{labels} value [timestamp]``. None if it is malformed."""
    labels: dict[str, str] = {}
    if rest.startswith("{"):
        end = _end_of_labels(rest)
        if end < 0:
            return None
        labels = {name: _unescaped(value) for name, value in _LABEL.findall(rest[:end])}
        rest = rest[end + 1 :]
    words = rest.split(maxsplit=1)
    value = figure_of(words[0]) if words else None
    return None if value is None else Sample(labels, value)


def figure_of(value: object) -> float | None:
    """A number, or a text that is one; None for anything else, and for what is not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) <= _LARGEST else None


def _end_of_labels(text: str) -> int:
    """The place of the closing brace; a brace within a quoted value is none. -1 if there is none."""
    end = text.find("}")
    if text.count('"', 0, end) % 2 == 0 and "\\" not in text[:end]:
        return end
    quoted = escaped = False
    for place, character in enumerate(text):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = quoted
        elif character == '"':
            quoted = not quoted
        elif character == "}" and not quoted:
            return place
    return -1


def _unescaped(value: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPES[match[0]], value) if "\\" in value else value
