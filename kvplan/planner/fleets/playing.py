"""Fleets played: a choice with so many replicas behind a router, on the busiest window or on the whole trace.

Plays that do not depend on each other run on several cores, in processes that are forked off and end with their share.
``multiprocessing.Pool`` forks beside threads of its own, and its end waits for ever where a child that was forked in a
process with other threads, as a notebook's, does not take the signal. Here a child runs plays, writes what they return
and is gone.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from kvplan.estimate.speed.queueing.figures import PlayedFigures
from kvplan.fleet.replicas.fleet import Fleet, FleetPlay
from kvplan.fleet.routers.named import make_router
from kvplan.fleet.windows import TraceWindow, figures_of, windows_of
from kvplan.planner.fleets.demand import Demand, Part
from kvplan.planner.fleets.judging import Bar, FleetVerdict, hopeless
from kvplan.planner.fleets.setups import FleetChoice
from kvplan.planner.question.slo import Goal

Result = TypeVar("Result")
_MOST_PROCESSES: Final = 8
_TICKET_BYTES: Final = 4
_MOST_TICKETS: Final = 1000
"""Written to a pipe at once: what fits there."""
OnPlay = Callable[[int], None]
"""Is told how many fleets were played."""


@dataclass(frozen=True)
class FleetPlan:
    """A fleet: ``replicas`` of ``found`` behind the router of that name."""

    found: FleetChoice
    replicas: int
    router: str
    caches_prefixes: bool = True

    @property
    def key(self) -> tuple[object, ...]:
        return (self.found.choice.key, self.replicas, self.router, self.caches_prefixes)


@dataclass(frozen=True)
class Played:
    """A fleet with its play and what that says. figures: of all requests; None where none has ended. is_whole: of the
    whole trace. was_stopped: it was hopeless, and its figures are of what had ended by then."""

    plan: FleetPlan
    play: FleetPlay
    verdict: FleetVerdict
    figures: PlayedFigures | None
    is_whole: bool

    @property
    def was_stopped(self) -> bool:
        return self.play.was_stopped

    @property
    def keeps(self) -> bool:
        return not self.was_stopped and self.verdict.keeps

    @property
    def hit_rate(self) -> float:
        """Share of all prompt tokens that were found in a prefix cache."""
        windows = [each.window for each in self.verdict.windows]
        return sum(each.num_hit_tokens for each in windows) / max(sum(each.num_prompt_tokens for each in windows), 1)


class Outcome(NamedTuple):
    """What a play leaves, small enough to be sent from one process to another."""

    play: FleetPlay
    windows: tuple[TraceWindow, ...]
    figures: PlayedFigures | None


@dataclass
class Player:
    """Plays fleets against one demand, each once."""

    demand: Demand
    goal: Goal
    share_of_windows: float
    on_play: OnPlay | None = None
    num_played: int = 0
    _known: dict[tuple[object, ...], Played] = field(default_factory=dict)

    def bar(self, found: FleetChoice) -> Bar:
        """What a fleet of ``found`` has to show."""
        return Bar.of(self.goal, found.model, self.share_of_windows)

    def busiest(self, plan: FleetPlan, *, whole_play: bool = False) -> Played:
        """On the busiest window. whole_play: its figures are wanted also where it is hopeless."""
        return self.play(plan, self.demand.busiest, "busiest", gives_up=not whole_play)

    def whole(self, plan: FleetPlan, *, gives_up: bool = True) -> Played:
        """On the whole trace."""
        return self.play(plan, self.demand.whole, "whole", gives_up=gives_up)

    def prepare(self, plans: Sequence[FleetPlan], *, whole_play: bool = False) -> None:
        """Play ``plans`` on the busiest window, on as many cores as there are."""
        part, new = self.demand.busiest, [each for each in plans if not self._is_known(each, "busiest", not whole_play)]
        outcomes = side_by_side(len(new), lambda number: self._outcome(new[number], part, gives_up=not whole_play))
        for plan, outcome in zip(new, outcomes, strict=True):
            self._keep(plan, part, "busiest", outcome)

    def play(self, plan: FleetPlan, part: Part, name: object, *, gives_up: bool) -> Played:
        """On ``part``, called ``name``. gives_up: stop once the service level is lost."""
        if not self._is_known(plan, name, gives_up):
            self._keep(plan, part, name, self._outcome(plan, part, gives_up=gives_up))
        key = (*plan.key, name)
        return self._known[key]

    def _is_known(self, plan: FleetPlan, name: object, gives_up: bool) -> bool:
        known = self._known.get((*plan.key, name))
        return known is not None and (gives_up or not known.was_stopped)

    def _outcome(self, plan: FleetPlan, part: Part, *, gives_up: bool) -> Outcome:
        bar, seconds, found = self.bar(plan.found), self.demand.window_seconds, plan.found
        if not plan.caches_prefixes:
            found = found.without_prefix_caching()
        router = make_router(plan.router, found.sizes)
        fleet = Fleet(found.setup, plan.replicas, router, sample_seconds=self.demand.sample_seconds)
        stop = hopeless(bar, part.requests, seconds, part.judged) if gives_up else None
        played = fleet.play(part.requests, stop=stop)
        outcome = Outcome(played, windows_of(played, seconds), figures_of(played) if played.seen else None)
        played.seen.clear()  # windows have what is shown of them
        return outcome

    def _keep(self, plan: FleetPlan, part: Part, name: object, outcome: Outcome) -> None:
        self.num_played += 1
        if self.on_play is not None:
            self.on_play(self.num_played)
        verdict = self.bar(plan.found).judge_windows(outcome.windows, part.judged)
        is_whole = len(part.requests) == len(self.demand.requests)
        key = (*plan.key, name)
        self._known[key] = Played(plan, outcome.play, verdict, outcome.figures, is_whole)


class _Child(NamedTuple):
    """pid: of the process; answers: the end of the pipe that it writes to."""

    pid: int
    answers: int


def num_cores() -> int:
    """Cores that this process may use for plays; 1 where processes cannot be forked off safely."""
    if not sys.platform.startswith("linux"):
        return 1
    return min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)


def side_by_side(count: int, job: Callable[[int], Result]) -> list[Result]:
    """Return what ``job`` returns for 0 to ``count`` - 1. Ctrl-C ends all of them, and what one raises is raised."""
    processes = min(num_cores(), count)
    if processes < 2 or count > _MOST_TICKETS:
        return [job(number) for number in range(count)]
    tickets, written = os.pipe()
    children: list[_Child] = []
    found: dict[int, Any] = {}
    try:
        for _ in range(processes):
            children.append(_forked(tickets, written, job))
        # Only now do they begin: one that is forked while Ctrl-C comes, and that nobody knows of, finds no number.
        os.write(written, b"".join(number.to_bytes(_TICKET_BYTES, "little") for number in range(count)))
        os.close(written)
        written = -1
        for child in children:
            found |= _answers_of(child)
    except BaseException:
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
        raise
    finally:
        for end in (tickets, written):
            if end >= 0:
                os.close(end)
        for child in children:
            os.close(child.answers)
            os.waitpid(child.pid, 0)
    for number in range(count):
        if number not in found:  # its process was killed, or raised what is raised here once more
            found[number] = job(number)
    return [found[number] for number in range(count)]


def _forked(tickets: int, tickets_written: int, job: Callable[[int], object]) -> _Child:
    answers, written = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(tickets_written)
        _run(tickets, written, job)
    os.close(written)
    return _Child(pid, answers)


def _run(tickets: int, written: int, job: Callable[[int], object]) -> None:
    """Play numbers as long as there are any, in a child. It never returns."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent takes it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        found: dict[int, object] = {}
        while ticket := os.read(tickets, _TICKET_BYTES):
            number = int.from_bytes(ticket, "little")
            found[number] = job(number)
        with os.fdopen(written, "wb") as file:
            pickle.dump(found, file)
    finally:
        os._exit(0)


def _answers_of(child: _Child) -> dict[int, Any]:
    """Return what ``child`` returned; nothing of one that was killed."""
    parts = []
    while part := os.read(child.answers, 1 << 20):
        parts.append(part)
    whole = b"".join(parts)
    try:
        found: dict[int, Any] = pickle.loads(whole)
    except (EOFError, pickle.UnpicklingError):
        return {}
    return found
