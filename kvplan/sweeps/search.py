"""Finding a boundary in a fraction of the runs: bisection along one axis, started where the planner expects it.

A line is all values of the axis with everything else fixed, from the easiest to the hardest:

    easy  o o o o o o o | x x x x x  hard        o works, x fails to start or runs out of memory
                      ^   ^
           last to work   first to fail

The first two probes are the two sides of the predicted boundary. Where the prediction was right the search ends there;
otherwise the interval that is left is halved until both sides are neighbours: at most log2(n) + 3 probes for n values.

Memory is not always monotone. So a share of the points that need no run is run all the same (an audit), on both sides;
the others beyond the boundary are recorded as skipped_oom_dominated. An audit that contradicts the boundary ends up
among the summary's violations.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvplan.catalog.statuses import MEASURED_STATUSES, OUT_OF_MEMORY_STATUSES
from kvplan.errors import UsageError
from kvplan.sweeps.axes import AXES, AxisValue
from kvplan.sweeps.boundaries import SAME_THROUGHPUT
from kvplan.sweeps.prediction import Predictor
from kvplan.sweeps.schedule import Row, Step, Steps
from kvplan.sweeps.trial import Trial, TrialSettings

_Narrowing = Generator[Step, Row, tuple[int, int]]
_Probing = Generator[Step, Row, Row]

BOUNDARY_AXES = ("max_model_len", "gpu_memory_utilization", "max_num_seqs")
AUDIT_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class BoundarySearch:
    """A search along ``axis`` for every line; a schedule. Lines are ordered from the easiest value to the hardest."""

    axis: str
    lines: tuple[tuple[TrialSettings, ...], ...]
    predictor: Predictor
    seed: int = 0
    audit_share: float = AUDIT_SHARE

    def steps(self) -> Steps:
        counter = itertools.count(1)
        for line in self.lines:
            search = _LineSearch(line, counter, self.seed, self.audit_share)
            if self.axis == "max_num_seqs":
                yield from search.knee()
            else:
                yield from search.boundary(_predicted_successes(line, self.predictor))


@dataclass(frozen=True, slots=True)
class SearchSequence:
    """Several searches one after the other, each setting run once; a schedule."""

    searches: tuple[BoundarySearch, ...]

    def steps(self) -> Steps:
        rows: dict[TrialSettings, Row] = {}
        number = 0
        for search in self.searches:
            steps = search.steps()
            step = next(steps, None)
            while step is not None:
                settings = step.trial.settings
                if settings not in rows:
                    number += 1
                    rows[settings] = yield Step(_numbered(step.trial, number), step.skip_sentence)
                try:
                    step = steps.send(rows[settings])
                except StopIteration:
                    break


def _numbered(trial: Trial, number: int) -> Trial:
    return Trial(number, trial.settings, trial.run_number, trial.planes)


def _predicted_successes(line: Sequence[TrialSettings], predictor: Predictor) -> int:
    """How many values from the easy end the planner expects to start."""
    starts = [predictor.memory(settings).outcome == "ok" for settings in line]
    return starts.index(False) if False in starts else len(line)


@dataclass(slots=True)
class _LineSearch:
    line: tuple[TrialSettings, ...]
    counter: itertools.count[int]
    seed: int
    audit_share: float
    rows: dict[int, Row] = field(default_factory=dict)

    def boundary(self, expected: int) -> Steps:
        """Bisect between the last value that works and the first that fails, then audit the rest."""
        works, fails = -1, len(self.line)
        for index in (expected - 1, expected):
            if works < index < fails:
                works, fails = yield from self._narrow(index, works, fails)
        while fails - works > 1:
            works, fails = yield from self._narrow((works + fails) // 2, works, fails)
        yield from self._audit(fails)

    def _narrow(self, index: int, works: int, fails: int) -> _Narrowing:
        row = yield from self._probe(index, "probe")
        return (index, fails) if _works(row) else (works, index)

    def _audit(self, first_failure: int) -> Steps:
        blamed = self.rows.get(first_failure)
        for index in range(len(self.line)):
            if index in self.rows:
                continue
            if self._is_audited(index):
                yield from self._probe(index, "audit")
            elif index > first_failure and blamed is not None and _ran_out_of_memory(blamed):
                sentence = f"Not run: {self.line[first_failure].as_text()} had ended as {blamed['status']} already."
                yield Step(Trial(next(self.counter), self.line[index], planes=("probe",)), sentence)

    def knee(self) -> Steps:
        """The smallest batch that is as fast as the fastest probe: halving between it and the smallest value."""
        top = len(self.line) - 1
        yield from self._probe(top, "probe")
        slow, fast = -1, top
        while fast - slow > 1:
            middle = (slow + fast) // 2
            yield from self._probe(middle, "probe")
            best = max(_speed(row) for row in self.rows.values())
            enough = (1 - SAME_THROUGHPUT) * best
            slow, fast = (slow, middle) if _speed(self.rows[middle]) >= enough else (middle, fast)

    def _probe(self, index: int, plane: str) -> _Probing:
        row = yield Step(Trial(next(self.counter), self.line[index], planes=(plane,)))
        self.rows[index] = row
        return row

    def _is_audited(self, index: int) -> bool:
        """Drawn from the seed and the point itself, so that a continued search draws the same."""
        key = f"{self.seed}/{Trial(0, self.line[index]).trial_id}".encode()
        drawn = int.from_bytes(hashlib.sha256(key).digest()[:8], "big") / 2**64
        return drawn < self.audit_share


def _works(row: Row) -> bool:
    return row["status"] in MEASURED_STATUSES


def _ran_out_of_memory(row: Row) -> bool:
    return row["status"] in OUT_OF_MEMORY_STATUSES


def _speed(row: Row) -> float:
    return row["output_throughput"] if _works(row) else 0.0


def make_search(
    axes_to_search: Sequence[str],
    axes: Mapping[str, Sequence[AxisValue]],
    base: TrialSettings,
    predictor: Predictor,
    seed: int,
) -> SearchSequence:
    """A search along each of ``axes_to_search``, on a line for every combination of the other axes that were given.

    An axis that is searched without values of its own gets a fine default range; while another axis is searched it
    stands at its base value.
    """
    searches = []
    for axis in axes_to_search:
        if axis not in BOUNDARY_AXES:
            raise UsageError(f"--boundary '{axis}' cannot be searched.", hint="one of " + ", ".join(BOUNDARY_AXES))
        values = list(axes.get(axis) or default_values(axis, predictor))
        others = {name: axes[name] for name in AXES if name in axes and name not in axes_to_search}
        lines = [
            _line(axis, values, base.with_changes(**dict(zip(others, combination, strict=True))))
            for combination in itertools.product(*others.values())
        ]
        searches.append(BoundarySearch(axis, tuple(lines), predictor, seed))
    return SearchSequence(tuple(searches))


def _line(axis: str, values: Sequence[AxisValue], fixed: TrialSettings) -> tuple[TrialSettings, ...]:
    # More context is harder, more utilization is easier; batches go from small to large.
    ordered = sorted(set(values), reverse=axis == "gpu_memory_utilization")
    return tuple(fixed.with_changes(**{axis: value}) for value in ordered)


def default_values(axis: str, predictor: Predictor) -> list[Any]:
    """Sixty-four contexts up to the model's positions, utilizations in steps of 0.01, batches in powers of two."""
    if axis == "gpu_memory_utilization":
        return [round(step / 100, 2) for step in range(1, 101)]
    if axis == "max_num_seqs":
        return [1 << exponent for exponent in range(9)]
    limit = predictor.spec.max_position_embeddings or 32768
    step = max(1, limit // 64)
    return list(range(step, limit + 1, step))
