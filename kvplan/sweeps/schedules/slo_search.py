"""Finds the largest load within a service level: bisection over request rate or requests in flight.

    light  o o o o o | x x x x  heavy      o: more than half of the runs meet it, x: not
                   ^   ^
         last to meet   first to miss

The first loads to run are the two sides of the predicted boundary. One run may be lucky, so every load is run until a
majority of its runs agrees, and the two loads at the boundary as often as requested; the result says how many of them
met the service level, with an interval.

A search over request_rate starts with one run of all requests at once: what the engine then completes per second is its
capacity, and the rates to search lie around and below it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from kvplan.errors import UsageError
from kvplan.runs.columns import Row
from kvplan.runs.statuses import MEASURED_STATUSES
from kvplan.runs.trials import Load, Trial, TrialSettings
from kvplan.sweeps.axes import Axis, parse_values
from kvplan.sweeps.schedules.schedule import Step, Steps

LOAD_AXES: Final = {
    "max_concurrency": Axis(
        "max_concurrency", "count", example="4,16,64 or 1..64*2", written="--search max_concurrency"
    ),
    "request_rate": Axis("request_rate", "rate", example="0.5,1,2 or 0.5..8*1.2", written="--search request_rate"),
}
# Neighbouring rates differ by this factor: a few dozen requests cannot distinguish closer ones.
_RATE_STEP: Final = 1.1
# From an eighth of the measured capacity to a tenth above it.
_STEPS_BELOW: Final = 22
_STEPS_ABOVE: Final = 1
SLO_PLANE: Final = "slo"
"""The part of a design that the rows of such a search belong to."""

StepType = TypeVar("StepType")


@dataclass(frozen=True, slots=True)
class LoadRange:
    """What ``--search`` asks for: the load's name and, if given, the values to choose from."""

    variable: str
    values: tuple[float, ...] = ()

    @staticmethod
    def parse(text: str) -> LoadRange:
        """``max_concurrency``, ``request_rate=0.5..8*1.2``. UsageError otherwise."""
        name, equals, values = text.partition("=")
        variable = name.strip().replace("-", "_")
        if variable not in LOAD_AXES or (equals and not values.strip()):
            raise UsageError(
                f"--search cannot vary '{text}'.",
                hint="max_concurrency or request_rate, optionally with values, such as max_concurrency=1..64",
            )
        parsed = parse_values(LOAD_AXES[variable], values) if equals else ()
        return LoadRange(variable, tuple(sorted(float(value) for value in parsed)))


@dataclass(frozen=True, slots=True)
class SloSearch:
    """A search for every setting in ``settings``; a schedule. num_runs: how often a load at the boundary is run.

    expects: whether a load is expected to meet the service level at a setting.
    """

    load_range: LoadRange
    settings: tuple[TrialSettings, ...]
    num_requests: int
    num_runs: int
    expects: Callable[[TrialSettings, Load], bool]

    def steps(self) -> Steps:
        counter = itertools.count(1)
        for settings in self.settings:
            yield from self._line(settings, counter).search(self.load_range.values, self.num_requests)

    def _line(self, settings: TrialSettings, counter: itertools.count[int]) -> LoadLine[Step]:
        return LoadLine(
            make_step=lambda load, number: Step(Trial(next(counter), settings, number, (SLO_PLANE,), load)),
            variable=self.load_range.variable,
            num_runs=self.num_runs,
            expects=lambda load: self.expects(settings, load),
        )


@dataclass(slots=True)
class LoadLine(Generic[StepType]):
    """The search at one setting, of whatever is loaded: ``make_step`` makes what runs a load for the n-th time.

    A generator of these steps that is sent the row of each. rows: the runs of every load that was probed.
    """

    make_step: Callable[[Load, int], StepType]
    variable: str
    num_runs: int
    expects: Callable[[Load], bool]
    rows: dict[float, list[Row]] = field(default_factory=dict)

    def search(self, values: Sequence[float], num_requests: int) -> Generator[StepType, Row, None]:
        """values: the loads to choose from, ascending; without them rates around the capacity, or 1 to num_requests."""
        if not values and self.variable == "request_rate":
            row = yield self.make_step(Load(request_rate=math.inf), 1)
            if row["status"] not in MEASURED_STATUSES:
                return
            values = rates_around(row["request_throughput"] or 0.0)
        loads = values or [float(value) for value in range(1, num_requests + 1)]
        keeps, misses = -1, len(loads)
        expected = self._num_expected(loads)
        for place in (expected - 1, expected):
            if keeps < place < misses:
                keeps, misses = yield from self._narrow(loads, place, keeps, misses)
        while misses - keeps > 1:
            keeps, misses = yield from self._narrow(loads, (keeps + misses) // 2, keeps, misses)
        for place in (keeps, misses):
            if 0 <= place < len(loads):
                yield from self._complete(loads[place])

    def _narrow(
        self, loads: Sequence[float], place: int, keeps: int, misses: int
    ) -> Generator[StepType, Row, tuple[int, int]]:
        kept = yield from self._most_runs_keep(loads[place])
        return (place, misses) if kept else (keeps, place)

    def _num_expected(self, loads: Sequence[float]) -> int:
        """How many loads, from the light end, are expected to meet the service level; by bisection."""
        low, high = 0, len(loads)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.expects(self._load(loads[middle])) else (low, middle)
        return low

    def _most_runs_keep(self, value: float) -> Generator[StepType, Row, bool]:
        """Run until more than half of all runs agree, however the rest would turn out."""
        majority = self.num_runs // 2 + 1
        runs = self.rows.setdefault(value, [])
        while _num_keeping(runs) < majority and len(runs) - _num_keeping(runs) < self.num_runs - majority + 1:
            runs.append((yield self.make_step(self._load(value), len(runs) + 1)))
        return _num_keeping(runs) >= majority

    def _complete(self, value: float) -> Generator[StepType, Row, None]:
        runs = self.rows[value]
        while len(runs) < self.num_runs and runs[-1]["status"] in MEASURED_STATUSES:
            runs.append((yield self.make_step(self._load(value), len(runs) + 1)))

    def _load(self, value: float) -> Load:
        if self.variable == "request_rate":
            return Load(request_rate=value)
        return Load(max_concurrency=int(value))


def _num_keeping(runs: Sequence[Row]) -> int:
    return sum(bool(run["slo_pass"]) for run in runs)


def rates_around(capacity: float) -> tuple[float, ...]:
    """Rates in equal ratios around a capacity in requests per second, to three digits."""
    exponents = range(-_STEPS_BELOW, _STEPS_ABOVE + 1)
    return tuple(sorted({float(f"{capacity * _RATE_STEP**exponent:.3g}") for exponent in exponents}))
