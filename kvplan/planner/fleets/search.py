"""The cheapest fleet that keeps a service level over a trace.

Every choice of a plan (GPU, layout, formats) has a least number of replicas in closed form, and with it a least price.
From cheap to dear each is played on the busiest window, with as many replicas as the best fleet so far costs: what does
not keep the level then is done with, and of what does the fewest replicas are found by bisection. What is left is
played on the whole trace, with a replica more where that does not hold. Then token budgets and routers of the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.fleet.routers.named import ROUTERS
from kvplan.planner.choices.basis import PlanBasis
from kvplan.planner.choices.deployment import DeploymentChoice
from kvplan.planner.choices.formats import FormatPair
from kvplan.planner.fleets.demand import Alone, could_begin, least_replicas, seconds_alone
from kvplan.planner.fleets.playing import FleetPlan, Played, Player
from kvplan.planner.fleets.setups import FleetChoice, fleet_choice
from kvplan.planner.search.ranking import Price, price_of, within_budget

FIRST_ROUTER: Final = "dynamo"
"""Fleets are compared behind it, where nobody names one: it looks at prompts and at loads."""
_GALLOP: Final = 1.25
_MOST_TRIED_BELOW: Final = 3


class Entry(NamedTuple):
    """A choice with the fewest replicas that could do."""

    least: int
    price: Price
    found: FleetChoice


@dataclass
class FleetSearch:
    """One search. tell: is told of each fleet that is the best so far. gpus: those that are tried, None for all.

    budgets: of tokens, that are tried beside the default; None for the usual ones. ceiling: what costs less is kept.
    """

    basis: PlanBasis
    player: Player
    formats: Sequence[FormatPair]
    router: str | None = None
    tell: Callable[[Played], None] | None = None
    gpus: Sequence[GpuProfile] | None = None
    budgets: Sequence[int] | None = None
    ceiling: Price | None = None
    best: Played | None = None
    nearest: Played | None = None
    quickest: Alone | None = None
    """Of all choices: how fast prompts are read alone."""
    cheapest: dict[tuple[str, ...], Played] = field(default_factory=dict)
    """Searches by GPU and formats."""
    routers: dict[str, Played] = field(default_factory=dict)
    without_cache: Played | None = None
    num_tried: int = 0
    num_left_out: int = 0
    was_interrupted: bool = False

    def run(self) -> None:
        """Find ``best``. Ctrl-C keeps what was found until then."""
        self.search()
        if self.best is None or self.was_interrupted:
            return
        try:
            self._polish_budgets()
            self._polish_routers()
        except KeyboardInterrupt:
            self.was_interrupted = True

    def search(self) -> None:
        """Find the best choice and its replicas alone."""
        try:
            self._search(across_nodes=False)
            if self.best is None:
                self._search(across_nodes=True)
        except KeyboardInterrupt:
            self.was_interrupted = True

    @property
    def first_router(self) -> str:
        return self.router or FIRST_ROUTER

    def price(self, found: FleetChoice, replicas: int) -> Price:
        """What so many cost, spare ones too."""
        return price_of(found.choice.gpu, self.basis.num_gpus(found.choice, replicas))

    # ---- choices

    def _search(self, *, across_nodes: bool) -> None:
        for entry in sorted(self._entries(across_nodes=across_nodes), key=lambda each: (each.price, each.least)):
            self._try(entry)

    def _entries(self, *, across_nodes: bool) -> Iterator[Entry]:
        for choice in self._choices(across_nodes=across_nodes):
            self.num_tried += 1
            found = fleet_choice(self.basis, choice)
            if found is None:
                continue
            least = self._least(found)
            if least is None or least > self.basis.most_replicas(choice):
                self.num_left_out += 1
                continue
            price = self.price(found, least)
            if within_budget(price, self.basis.request.usd_per_hour):
                yield Entry(least, price, found)

    def _least(self, found: FleetChoice) -> int | None:
        """The fewest replicas that could do; None where none could."""
        busy, goal = self.player.demand.busy, self.player.goal
        bar = self.player.bar(found)
        alone, is_fast = seconds_alone(found, busy, bar), could_begin(found, busy, bar)
        if alone is not None and (self.quickest is None or alone.seconds < self.quickest.seconds):
            self.quickest = alone
        return least_replicas(found, busy, goal) if is_fast else None

    def _choices(self, *, across_nodes: bool) -> Iterator[DeploymentChoice]:
        for gpu in self.basis.gpus if self.gpus is None else self.gpus:
            for pair in self.formats:
                if not self.basis.refuses(pair, gpu):
                    for layout in self.basis.layouts(pair.weights, gpu, across_nodes=across_nodes):
                        yield DeploymentChoice(gpu, layout, pair.weights, pair.kv_cache_dtype)

    def _variants(self, found: FleetChoice) -> Iterator[FleetChoice]:
        """With each other token budget."""
        usual = self.basis.other_step_tokens(found.choice)
        for tokens in usual if self.budgets is None else [each for each in self.budgets if each != found.tokens]:
            other = fleet_choice(self.basis, replace(found.choice, max_num_batched_tokens=tokens))
            if other is not None:
                yield other

    # ---- replicas

    def _most(self, found: FleetChoice) -> int:
        """Return as many as are allowed and cost no more than the best so far."""
        most, budget = self.basis.most_replicas(found.choice), self.basis.request.usd_per_hour
        best = None if self.best is None else self.price(self.best.plan.found, self.best.plan.replicas)

        def is_allowed(count: int) -> bool:
            price = self.price(found, count)
            is_below = self.ceiling is None or price < self.ceiling
            return is_below and within_budget(price, budget) and (best is None or price <= best)

        low, high = 0, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if is_allowed(middle) else (low, middle)
        return low

    def _try(self, entry: Entry) -> None:
        """Play one choice, with other token budgets where the engine's default does not keep the level."""
        variants = (entry.found, *self._variants(entry.found))
        if self.best is not None and entry.least <= (most := self._most(entry.found)):
            self.player.prepare([self._plan(found, most) for found in variants])
        for found in variants:
            least = entry.least if found is entry.found else self._least(found)
            if least is None or least > (most := self._most(found)):
                continue
            count = self._fewest(found, least, most)
            if count is not None:
                self._settle(found, count, most)

    def _plan(self, found: FleetChoice, count: int, router: str | None = None) -> FleetPlan:
        return FleetPlan(found, count, router or self.first_router)

    def _keeps(self, found: FleetChoice, count: int) -> bool:
        played = self.player.busiest(self._plan(found, count))
        self._note(played)
        return played.keeps

    def _note(self, played: Played) -> None:
        """Remember what came nearest."""
        if self.nearest is None or (played.verdict.windows and _miss(played) < _miss(self.nearest)):
            self.nearest = played

    def _fewest(self, found: FleetChoice, least: int, most: int) -> int | None:
        """The fewest replicas that keep the level in the busiest window."""
        if not self._keeps(found, most):
            return None
        low, high = least - 1, most
        if self.best is None:  # the most that are allowed may be far more than it takes
            high = least
            while not self._keeps(found, high):
                low, high = high, min(max(math.ceil(high * _GALLOP), high + 1), most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._keeps(found, middle) else (middle, high)
        return high

    def _settle(self, found: FleetChoice, count: int, most: int) -> None:
        """Play the whole trace, with more replicas while that is not kept, or fewer where it is."""
        played = self.player.whole(self._plan(found, count))
        while not played.keeps:
            self._note(played)
            count += 1
            if count > most:
                return
            played = self.player.whole(self._plan(found, count))
        for fewer in range(count - 1, max(count - 1 - _MOST_TRIED_BELOW, 0), -1):
            # The busiest window begins with an empty cache there, so the whole trace may do with fewer.
            again = self.player.whole(self._plan(found, fewer))
            if not again.keeps:
                break
            played = again
        self._take(played)

    def _take(self, played: Played) -> None:
        """Keep what is better than the best so far, and the best of each GPU and formats."""
        choice = played.plan.found.choice
        kind = (choice.gpu.id, *choice.formats)
        if kind not in self.cheapest or self._rank(played) < self._rank(self.cheapest[kind]):
            self.cheapest[kind] = played
        if self.best is None or self._rank(played) < self._rank(self.best):
            self.best = played
            if self.tell is not None:
                self.tell(played)

    def _rank(self, played: Played) -> tuple[Price, float]:
        """The cheapest, then what has the most room."""
        return self.price(played.plan.found, played.plan.replicas), round(played.verdict.deciding.ratio, 4)

    # ---- what else the best may be

    def _polish_budgets(self) -> None:
        """Try the best with other token budgets, with one replica less first."""
        assert self.best is not None
        variants = [*self._variants(self.best.plan.found)]
        self.player.prepare([self._plan(found, max(self.best.plan.replicas - 1, 1)) for found in variants])
        for found in variants:
            for count in (self.best.plan.replicas - 1, self.best.plan.replicas):
                if count >= 1 and self._keeps(found, count):
                    self._take_whole(self._plan(found, count))
                    break

    def _polish_routers(self) -> None:
        """Try the best behind every router where nobody names one; what it finds and keeps is told beside it."""
        assert self.best is not None
        plan = self.best.plan
        names = [plan.router] if self.router is not None or plan.replicas == 1 else [*ROUTERS]
        if plan.replicas > 1:
            smaller = [
                replace(plan, router=name, replicas=plan.replicas - 1) for name in names if self._may_choose(name)
            ]
            self.player.prepare(smaller)
        for name in names:
            fewer = replace(self.best.plan, router=name, replicas=self.best.plan.replicas - 1)
            if not self._may_choose(name):
                continue
            if fewer.replicas >= 1 and self.player.busiest(fewer).keeps:
                self._take_whole(fewer)
        self.player.prepare([replace(self.best.plan, router=name) for name in names], whole_play=True)
        for name in names:
            same = replace(self.best.plan, router=name)
            self.routers[name] = self.player.busiest(same, whole_play=True)
        known = {name: played for name, played in self.routers.items() if self._may_choose(name)}
        first = min(known, key=lambda name: known[name].verdict.deciding.ratio)
        if known[first].keeps and first != self.best.plan.router:
            self._take_whole(known[first].plan)
        if self.best.plan.found.setup.pool.caches_prefixes:
            self.without_cache = self.player.busiest(replace(self.best.plan, caches_prefixes=False), whole_play=True)

    def _may_choose(self, name: str) -> bool:
        return name == self.router or ROUTERS[name].setting is not None

    def _take_whole(self, plan: FleetPlan) -> None:
        played = self.player.whole(plan)
        if played.keeps:
            self._take(played)


def _miss(played: Played) -> float:
    """How far it is from keeping the level: figures of what was given up say less than they would."""
    return math.inf if played.was_stopped or not played.verdict.windows else played.verdict.deciding.ratio
