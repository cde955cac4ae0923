"""Which lines ``--boundary`` searches: the axis of each, its values, and what is fixed meanwhile.

Finds a boundary in a fraction of the runs: bisection along one axis, started where the planner expects it.

A line is all values of the axis with everything else fixed, from the easiest to the hardest:

    easy  o o o o o o o | x x x x x  hard        o works, x fails to start or runs out of memory
                      ^   ^
           last to work   first to fail

The first two probes are the two sides of the predicted boundary. If the prediction was right the search ends there;
otherwise the remaining interval is halved until both sides are neighbours: at most log2(n) + 3 probes for n values.

A setting that is run several times works only if it does so every time; its runs end with the first that fails.

Utilization may have a second boundary: a pool that was carved may still be more than the device can hold under load. So
once the lowest utilization is known, the highest one is probed too, and if it fails, the highest that survives is
bisected.

Memory is not always monotone. So a share of the points that need no run is run anyway (an audit), on both sides; the
others beyond the boundary are recorded as skipped_oom_dominated. An audit that contradicts the boundary shows up among
the summary's violations.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from kvplan.errors import UsageError
from kvplan.runs.answers.boundaries import SAME_THROUGHPUT
from kvplan.runs.columns import Row
from kvplan.runs.rows import has_speed, is_measured, throughput_of
from kvplan.runs.setting_text import settings_text, shown_settings
from kvplan.runs.statuses import OUT_OF_MEMORY_STATUSES
from kvplan.runs.trials import LOADED_FOR, Trial, TrialSettings
from kvplan.settings import KNOBS
from kvplan.sweeps.axes import AXES, AxisValue
from kvplan.sweeps.forecast.prediction import Predictor
from kvplan.sweeps.schedules.schedule import Step, Steps

_Narrowing = Generator[Step, Row, tuple[int, int]]
_Bisection = Generator[Step, Row, int]
_Probing = Generator[Step, Row, Row]

AUDIT_SHARE: Final = 1 / 12
BOUNDARY_AXES: Final = ("max_model_len", "gpu_memory_utilization", "max_num_seqs")
_FRONTIER_POINTS: Final = 8


def make_search(
    axes_to_search: Sequence[str],
    axes: Mapping[str, Sequence[AxisValue]],
    base: TrialSettings,
    predictor: Predictor,
    seed: int,
    num_runs: int = 1,
) -> SearchSequence:
    """A search along each of ``axes_to_search``, on one line for every combination of the other axes that were given.

    An axis that is searched without given values gets a fine default range; while another axis is searched it keeps its
    base value. ``first*second`` is a pair: lines along the first for every value of the second, in a few steps if none
    were given.
    """
    names = [axis.split("*") for axis in axes_to_search]
    searched = {name for pair in names for name in pair}
    others = {name: axes[name] for name in AXES if name in axes and name not in searched}
    searches = []
    for axis, *seconds in names:
        _check_axes((axis, *seconds))
        values = list(axes.get(axis) or default_values(axis, predictor))
        beside = others | {
            name: axes.get(name) or _second_values(name, axis, values, base, predictor) for name in seconds
        }
        lines = [
            _line(axis, values, base.with_changes(**dict(zip(beside, combination, strict=True))))
            for combination in itertools.product(*beside.values())
        ]
        searches.append(BoundarySearch(axis, tuple(dict.fromkeys(lines)), predictor, seed, num_runs=num_runs))
    return SearchSequence(tuple(searches))


def _check_axes(names: Sequence[str]) -> None:
    for name in names:
        if name not in BOUNDARY_AXES:
            raise UsageError(f"--boundary cannot vary '{name}'.", hint="one of " + ", ".join(BOUNDARY_AXES))
    if len(names) > 2 or len(set(names)) < len(names):
        raise UsageError(
            f"--boundary '{'*'.join(names)}' is not a pair of axes.",
            hint="for example max_model_len*gpu_memory_utilization",
        )


def _line(axis: str, values: Sequence[AxisValue], fixed: TrialSettings) -> tuple[TrialSettings, ...]:
    # More context is harder, more utilization is easier; batches go from small to large.
    ordered = sorted(set(values), reverse=axis == "gpu_memory_utilization")
    return tuple(fixed.with_changes(**{axis: value}) for value in ordered)


def default_values(axis: str, predictor: Predictor) -> list[AxisValue]:
    """Sixty-four contexts up to the model's positions, utilizations in steps of 0.01, batches in powers of two up to
    the first that takes the whole workload at once."""
    if axis == "gpu_memory_utilization":
        return [round(step / 100, 2) for step in range(1, 101)]
    if axis == "max_num_seqs":
        return [1 << exponent for exponent in range((len(predictor.requests) - 1).bit_length() + 1)]
    limit = predictor.spec.max_position_embeddings or 32768
    step = max(1, limit // 64)
    return list(range(step, limit + 1, step))


def _second_values(
    name: str, axis: str, values: Sequence[AxisValue], base: TrialSettings, predictor: Predictor
) -> list[AxisValue]:
    """The values of the second axis of a pair, if none were given."""
    if (name, axis) == ("gpu_memory_utilization", "max_model_len"):
        return frontier_utilizations(base, min(values), max(values), predictor) or coarse_values(name, predictor)
    return coarse_values(name, predictor)


def frontier_utilizations(
    base: TrialSettings, shortest: AxisValue, longest: AxisValue, predictor: Predictor
) -> list[AxisValue]:
    """Utilizations from just below the one at which the ``shortest`` context is expected to start to just above the one
    for the ``longest``: between them the frontier rises, elsewhere it is flat. [] where it rises nowhere."""
    low, high = (_lowest_start(base.with_changes(max_model_len=length), predictor) for length in (shortest, longest))
    if low is None or high is None or low == high:
        return []
    step = (high - low) / (_FRONTIER_POINTS - 3)
    spread = [round((low + place * step) / 1000, 3) for place in range(-1, _FRONTIER_POINTS - 1)]
    return sorted({value for value in spread if 0 < value <= 1})


def _lowest_start(settings: TrialSettings, predictor: Predictor) -> int | None:
    """The lowest utilization, in thousandths, at which these settings are expected to start; None if they never do."""
    thousandths = range(1, 1001)
    place = bisect.bisect_left(
        thousandths,
        True,
        key=lambda share: predictor.memory(settings.with_changes(gpu_memory_utilization=share / 1000)).outcome == "ok",
    )
    return thousandths[place] if place < len(thousandths) else None


def coarse_values(axis: str, predictor: Predictor) -> list[AxisValue]:
    """About eight values of the second axis of a pair, over the whole of its default range."""
    values = default_values(axis, predictor)
    step = max(1, len(values) // 8)
    return values[step - 1 :: step]


@dataclass(frozen=True, slots=True)
class BoundarySearch:
    """A search along ``axis`` for every line; a schedule. Lines are ordered from the easiest value to the hardest."""

    axis: str
    lines: tuple[tuple[TrialSettings, ...], ...]
    predictor: Predictor
    seed: int = 0
    audit_share: float = AUDIT_SHARE
    num_runs: int = 1

    def steps(self) -> Steps:
        counter = itertools.count(1)
        for line in self.lines:
            search = _LineSearch(line, counter, self.seed, self.audit_share, self.num_runs)
            if self.axis == "max_num_seqs":
                yield from search.knee()
                continue
            # How many values, from the easy end, the planner expects to start.
            starts = [self.predictor.memory(settings).outcome == "ok" for settings in line]
            expected = starts.index(False) if False in starts else len(line)
            yield from search.boundary(expected, has_far_side=self.axis == "gpu_memory_utilization")


@dataclass(frozen=True, slots=True)
class SearchSequence:
    """Several searches, one after the other, each setting run once; a schedule."""

    searches: tuple[BoundarySearch, ...]

    def steps(self) -> Steps:
        rows: dict[str, Row] = {}
        for search in self.searches:
            steps = search.steps()
            step = next(steps, None)
            while step is not None:
                trial_id = step.trial.trial_id
                if trial_id not in rows:
                    number = len(rows) + 1
                    rows[trial_id] = yield Step(replace(step.trial, number=number), step.skip_sentence)
                try:
                    step = steps.send(rows[trial_id])
                except StopIteration:
                    break


@dataclass(slots=True)
class _LineSearch:
    """The search along one line. rows: one for every index that was probed, merged over its runs."""

    line: tuple[TrialSettings, ...]
    counter: itertools.count[int]
    seed: int
    audit_share: float
    num_runs: int
    rows: dict[int, Row] = field(default_factory=dict)

    def boundary(self, expected: int, *, has_far_side: bool) -> Steps:
        """Bisect between the last value that works and the first that fails, then audit the rest."""
        order = range(len(self.line))
        works = yield from self._bisect(order, expected)
        hopeless = [order[works + 1 :]]
        if has_far_side and works >= 0:
            upward = order[works::-1]
            survives = yield from self._bisect(upward, len(upward))
            hopeless.append(upward[survives + 1 :])
        yield from self._audit(hopeless)

    def _bisect(self, order: Sequence[int], expected: int) -> _Bisection:
        """The last place in ``order`` (indices from easy to hard) that works, -1 for none; ``expected`` places do."""
        works, fails = -1, len(order)
        for place in (expected - 1, expected):
            if works < place < fails:
                works, fails = yield from self._narrow(order, place, works, fails)
        while fails - works > 1:
            works, fails = yield from self._narrow(order, (works + fails) // 2, works, fails)
        return works

    def _narrow(self, order: Sequence[int], place: int, works: int, fails: int) -> _Narrowing:
        row = yield from self._probe(order[place], "probe")
        return (place, fails) if is_measured(row) else (works, place)

    def _audit(self, hopeless: Sequence[Sequence[int]]) -> Steps:
        """Run a share of the points that need no run, on both sides; record the rest of every hopeless side as skipped.

        hopeless: the indices beyond each boundary, from the first failure on.
        """
        blamed = {index: side[0] for side in hopeless for index in side}
        for index in range(len(self.line)):
            if index in self.rows:
                continue
            if self._is_audited(index):
                yield from self._probe(index, "audit")
            elif index in blamed and self.rows[blamed[index]]["status"] in OUT_OF_MEMORY_STATUSES:
                yield Step(Trial(next(self.counter), self.line[index], planes=("probe",)), self._skipped(blamed[index]))

    def _skipped(self, failure: int) -> str:
        """Why a value needs no run: the one at ``failure`` had already run out of memory."""
        failed = self.line[failure]
        asked = shown_settings(name for name in LOADED_FOR if getattr(failed, name) != KNOBS[name].default)
        return f"Not run: {settings_text(failed, asked)} had already ended as {self.rows[failure]['status']}."

    def knee(self) -> Steps:
        """The smallest batch that is as fast as the fastest probe, then the first larger one that is slower again."""
        top = len(self.line) - 1
        yield from self._probe(top, "probe")
        slow, fast = -1, top
        while fast - slow > 1:
            middle = (slow + fast) // 2
            yield from self._probe(middle, "probe")
            slow, fast = (slow, middle) if self._is_fast(middle) else (middle, fast)
        while (hurts := self._first_slow(fast)) is not None:
            last_fast = max(index for index in self.rows if index < hurts and self._is_fast(index))
            if hurts - last_fast <= 1:
                return
            yield from self._probe((last_fast + hurts) // 2, "probe")

    def _is_fast(self, index: int) -> bool:
        best = max(_speed(row) for row in self.rows.values())
        return _speed(self.rows[index]) >= (1 - SAME_THROUGHPUT) * best

    def _first_slow(self, knee: int) -> int | None:
        """The smallest probed index beyond the knee that is slower again."""
        return min((index for index in self.rows if index > knee and not self._is_fast(index)), default=None)

    def _probe(self, index: int, plane: str) -> _Probing:
        """All runs of one setting; an audit is run once."""
        runs: list[Row] = []
        for run_number in range(1, 1 + (1 if plane == "audit" else self.num_runs)):
            trial = Trial(next(self.counter), self.line[index], run_number, (plane,))
            runs.append((yield Step(trial)))
            if not is_measured(runs[-1]):
                break
        self.rows[index] = _merged(runs)
        return self.rows[index]

    def _is_audited(self, index: int) -> bool:
        """One value of every band, so that a hole as wide as a band cannot be missed. Which one depends on the seed and
        the band's first point, so that a continued search draws the same."""
        if not self.audit_share:
            return False
        width = round(1 / self.audit_share)
        first = index // width * width
        key = f"{self.seed}/{Trial(0, self.line[first]).trial_id}".encode()
        return index == first + int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % width


def _merged(runs: Sequence[Row]) -> Row:
    """The last run's row, which is the one that failed if any did, with the median throughput of all."""
    rates = [throughput_of(run) for run in runs if has_speed(run)]
    return runs[-1] if len(runs) == 1 else runs[-1] | {"output_throughput": median(rates) if rates else None}


def _speed(row: Row) -> float:
    return throughput_of(row) if has_speed(row) else 0.0
