"""Which part of a request file is used, and how it is read: ``--from``, ``--sample``, ``--speed`` and the like."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from kvplan.errors import UsageError, check
from kvplan.workload.lengths import LONGEST, parse_length
from kvplan.workload.times import LONGEST_SECONDS, UNITS

_DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(ms|s|m|min|h|)")
_SECONDS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}


@dataclass(frozen=True, slots=True)
class FilePart:
    """start_seconds, end_seconds: counted from the file's first request, in its own time; None for its end.

    speed: 2 makes times half as long. sample: so many requests, drawn at random; most: the first so many. unit: of
    times, s, ms, us or ns; None to decide. output_tokens: of answers whose length the file does not say.
    ignores_times: requests are all there at once, in the file's order. spreads_ticks: those of one moment come evenly
    spread until the next one, where a coarse clock wrote the file.
    """

    start_seconds: float = 0.0
    end_seconds: float | None = None
    speed: float = 1.0
    sample: int | None = None
    most: int | None = None
    unit: str | None = None
    output_tokens: int | None = None
    ignores_times: bool = False
    spreads_ticks: bool = False

    def __post_init__(self) -> None:
        check(0 < self.speed < math.inf, f"--speed must be above 0, got {self.speed:g}", "2 is twice as fast")
        check(self.sample is None or self.sample >= 1, f"--sample must be at least 1, got {self.sample}", "use more")
        check(self.unit is None or self.unit in UNITS, f"Unknown --trace-unit '{self.unit}'", ", ".join(UNITS))
        ends_later = self.end_seconds is None or self.end_seconds > self.start_seconds
        check(ends_later, "--to must be later than --from", "both count from the file's first request")
        good = self.output_tokens is None or 1 <= self.output_tokens <= LONGEST
        check(good, f"--output-len must be from 1 to {LONGEST:,}", "it is for rows that do not say it")

    @property
    def needs_times(self) -> str | None:
        """The first of its options that means nothing without times."""
        given = {
            "--from": self.start_seconds > 0,
            "--to": self.end_seconds is not None,
            "--speed": self.speed != 1,
            "--spread-ticks": self.spreads_ticks,
        }
        return next((name for name, is_given in given.items() if is_given), None)

    @property
    def has_window(self) -> bool:
        return self.start_seconds > 0 or self.end_seconds is not None

    def used_of(self, num_in_window: int) -> int:
        """How many of those between --from and --to are used."""
        return min(each for each in (num_in_window, self.sample, self.most) if each is not None)


WHOLE_FILE: Final = FilePart()


def file_part(
    *,
    start: str | None = None,
    end: str | None = None,
    speed: float | None = None,
    sample: int | None = None,
    trace_unit: str | None = None,
    spread_ticks: bool = False,
    output_len: str | None = None,
    has_file: bool = True,
    has_rate: bool = False,
    ignores_times: bool = False,
) -> FilePart:
    """The part that options ask for. UsageError for values that cannot be read, and for options of files without one.

    output_len: for rows that do not say how long their answers are. has_rate: the file's times are rescaled anyway.
    """
    given = {"--from": start, "--to": end, "--speed": speed, "--sample": sample, "--trace-unit": trace_unit}
    given["--spread-ticks"] = spread_ticks or None
    first = next((name for name, value in given.items() if value is not None), None)
    check(first is None or has_file, f"{first} needs a --workload", "it says which part of the file is used, and how")
    check(
        speed is None or not has_rate,
        "--speed cannot be used with --request-rate",
        "both say how fast the file's requests come; leave one out",
    )
    if not has_file:
        return WHOLE_FILE
    return FilePart(
        start_seconds=parse_moment("--from", start) or 0.0,
        end_seconds=parse_moment("--to", end),
        speed=1.0 if speed is None else speed,
        sample=sample,
        unit=trace_unit,
        ignores_times=ignores_times,
        spreads_ticks=spread_ticks,
        output_tokens=None if output_len is None else parse_length("--output-len", output_len),
    )


def parse_moment(option: str, text: str | None) -> float | None:
    """``90``, ``90s``, ``1.5m`` or ``1h`` -> seconds. UsageError for anything else."""
    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) * _SECONDS[match[2]] > LONGEST_SECONDS:
        raise UsageError(
            f"{option} '{text}' is not a time.", hint=f"for example {option} 10m, from the first request on"
        )
    return float(match[1]) * _SECONDS[match[2]]
