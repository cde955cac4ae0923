"""Runs outliers again, around any schedule: a noisy run at once, a run far from its siblings at the end."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvplan.runs.answers.outliers import noise_reason, spread_reason
from kvplan.runs.columns import Row
from kvplan.runs.rows import is_measured
from kvplan.runs.trials import Load, Trial, TrialSettings
from kvplan.sweeps.schedules.schedule import Schedule, Step, Steps

# Reruns per trial of the schedule, and at least this many: on a machine that is always busy, more would change nothing.
RERUN_SHARE: Final = 0.1
FEWEST_RERUNS: Final = 2
# Run numbers of reruns start here, because the schedule's own runs of a setting may still be to come.
FIRST_RERUN: Final = 101

_Answer = Generator[Step, Row, Row]


@dataclass(frozen=True, slots=True)
class WithReruns:
    """The steps of another schedule, numbered in order, with reruns between and after them.

    The other schedule gets the rerun's row as its answer, unless that is an outlier too. Decisions depend on the rows
    alone, so that a continued sweep decides the same.
    """

    inner: Schedule

    def steps(self) -> Steps:
        reruns = _Reruns()
        steps = self.inner.steps()
        step = next(steps, None)
        while step is not None:
            answer = yield from reruns.take(step)
            try:
                step = steps.send(answer)
            except StopIteration:
                step = None
        yield from reruns.rerun_far_ones()


def reruns_after(trials: Sequence[Trial], rows: Mapping[str, Row]) -> tuple[Trial, ...]:
    """The reruns of a sweep whose trials did not run one after the other: of noisy runs, then of those far from others.

    rows: of all trials by id; the answer depends on these alone. Numbered after the trials.
    """
    runs: dict[tuple[TrialSettings, Load], list[tuple[Trial, Row]]] = {}
    for trial in trials:
        runs.setdefault((trial.settings, trial.load), []).append((trial, rows[trial.trial_id]))
    found = [(trial, reason) for trial in trials if (reason := noise_reason(rows[trial.trial_id])) is not None]
    found += [far for one in runs.values() if (far := _far_one(one)) is not None]
    again: list[Trial] = []
    seen: set[str] = set()
    for trial, reason in found:
        if trial.trial_id not in seen and len(again) < max(FEWEST_RERUNS, RERUN_SHARE * len(trials)):
            seen.add(trial.trial_id)
            earlier = sum((other.settings, other.load) == (trial.settings, trial.load) for other in again)
            number, run_number = len(trials) + len(again) + 1, FIRST_RERUN + earlier
            rerun = replace(trial, number=number, run_number=run_number)
            again.append(replace(rerun, rerun_of=trial.run_number, rerun_reason=reason))
    return tuple(again)


def _far_one(runs: Sequence[tuple[Trial, Row]]) -> tuple[Trial, str] | None:
    """The first run of a setting that is far from its others, with the reason."""
    for trial, row in runs:
        reason = spread_reason(row, [other for _, other in runs if other is not row])
        if reason is not None:
            return trial, reason
    return None


@dataclass(slots=True)
class _Reruns:
    """runs: everything that ran so far, by setting and load."""

    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    runs: dict[tuple[TrialSettings, Load], list[tuple[Trial, Row]]] = field(default_factory=dict)
    num_trials: int = 0
    num_reruns: int = 0

    def take(self, step: Step) -> _Answer:
        row = yield from self._run(step.trial, step.skip_sentence)
        reason = noise_reason(row)
        if reason is None or not self._may_rerun():
            return row
        second = yield from self._rerun(step.trial, reason)
        return second if is_measured(second) and noise_reason(second) is None else row

    def rerun_far_ones(self) -> Steps:
        """One rerun for each setting that has a run far from the others."""
        for runs in list(self.runs.values()):
            rows = [row for _, row in runs]
            for trial, row in list(runs):
                reason = spread_reason(row, [other for other in rows if other is not row])
                if reason is not None and not self._was_rerun(trial, runs) and self._may_rerun():
                    yield from self._rerun(trial, reason)
                    break

    def _run(self, trial: Trial, skip_sentence: str | None = None) -> _Answer:
        row = yield Step(replace(trial, number=next(self.numbers)), skip_sentence)
        if skip_sentence is None:
            self.runs.setdefault((trial.settings, trial.load), []).append((trial, row))
            self.num_trials += 1
        return row

    def _rerun(self, trial: Trial, reason: str) -> _Answer:
        earlier = self.runs[trial.settings, trial.load]
        number = FIRST_RERUN + sum(run.rerun_of is not None for run, _ in earlier)
        self.num_reruns += 1
        return (yield from self._run(replace(trial, run_number=number, rerun_of=trial.run_number, rerun_reason=reason)))

    def _may_rerun(self) -> bool:
        return self.num_reruns < max(FEWEST_RERUNS, RERUN_SHARE * self.num_trials)

    @staticmethod
    def _was_rerun(trial: Trial, runs: list[tuple[Trial, Row]]) -> bool:
        return trial.rerun_of is not None or any(other.rerun_of == trial.run_number for other, _ in runs)
