"""Fleets played: a choice with so many replicas behind a router, on the busiest window or on the whole trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvplan.estimate.speed.queueing.figures import PlayedFigures
from kvplan.fleet.replicas.fleet import Fleet, FleetPlay
from kvplan.fleet.routers.named import make_router
from kvplan.fleet.windows import TraceWindow, figures_of, windows_of
from kvplan.planner.fleets.cores import side_by_side
from kvplan.planner.fleets.demand import Demand, Part
from kvplan.planner.fleets.judging import Bar, FleetVerdict, hopeless
from kvplan.planner.fleets.setups import FleetChoice
from kvplan.planner.question.slo import Goal

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
