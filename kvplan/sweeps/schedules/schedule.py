"""The order in which a sweep runs its trials: a list known beforehand, or a search that looks at each result.

A schedule is a generator of steps that is sent the row of each step before it yields the next. A sweep that is
continued sends it the rows that are already stored, so that a search takes the same path again and runs only what is
missing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvplan.runs.columns import Row
from kvplan.runs.trials import Trial


@dataclass(frozen=True, slots=True)
class Step:
    """A trial to run, or, with ``skip_sentence``, one to record without running it."""

    trial: Trial
    skip_sentence: str | None = None


Steps = Generator[Step, Row, None]


class Schedule(Protocol):
    """What a runner follows: a list of trials, a search, or one wrapped in reruns."""

    def steps(self) -> Steps: ...


@dataclass(frozen=True, slots=True)
class FixedSchedule:
    """Every trial of a design, in order."""

    trials: tuple[Trial, ...]

    def steps(self) -> Steps:
        for trial in self.trials:
            yield Step(trial)


def simulate(schedule: Schedule, answer: Callable[[Step], Row]) -> list[Step]:
    """The steps that a schedule takes if ``answer`` makes the rows, for example from predictions."""
    taken: list[Step] = []
    steps = schedule.steps()
    try:
        step = next(steps)
        while True:
            taken.append(step)
            step = steps.send(answer(step))
    except StopIteration:
        return taken


def trials_of(steps: Sequence[Step]) -> tuple[Trial, ...]:
    """The trials that are run, without those that are only recorded."""
    return tuple(step.trial for step in steps if step.skip_sentence is None)
