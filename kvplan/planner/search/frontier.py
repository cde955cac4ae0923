"""The search itself: choices from cheap to dear, each with as few replicas as keep the goal under the played load.

A closed form says for each choice how many replicas it takes at least to hold the load and, when that price comes up,
from how many on it does. From there on, by price, the load is played, which takes tens of times as long; a choice that
does not keep the goal comes again with more replicas at a higher price. So what is found first is the cheapest, and all
that cost the same are compared before anything dearer.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.errors import KvplanError
from kvplan.planner.choices.basis import PlanBasis
from kvplan.planner.choices.candidate import Candidate
from kvplan.planner.choices.deployment import DeploymentChoice, Miss, PlannedDeployment
from kvplan.planner.choices.evaluation import evaluate, too_slow
from kvplan.planner.choices.formats import FormatPair
from kvplan.planner.choices.sizing import candidate, least_replicas, least_that_answer, one_seat_more, with_fewer_seats
from kvplan.planner.search.ranking import (
    Price,
    cost_of_tokens,
    fewest,
    price_of,
    rank,
    tpot_to_keep,
    within_budget,
    would_keep,
)

MOST_PLAYS: Final = 24
"""Most plays of one search: a plan over all GPUs then takes about two seconds on a slow core."""
THOROUGH_PLAYS: Final = 2000
_PATIENCE: Final = 3
"""So many times as many loads are played while none of them keeps the goal."""
_CLEARLY_WORSE: Final = 1.6
"""By averages in closed form, which lie within 1.7 of those of a play: beyond that another layout of the same GPUs is
not played."""
_NAMED: Final = 6
"""GPUs that somebody names, of each of which the answer says what becomes of it."""
_NOT_FASTER: Final = 0.95
_LEFT_OF_QUEUES: Final = 0.5
"""Power of what a play has above averages: more replicas have shorter queues. It is counted on where nothing
else leaves an answer."""
_MOST_BUDGETS: Final = 2
"""Token budgets of a choice, of which the quickest by averages, that are played before more replicas are."""
_PLAYS_OF_SEATS: Final = 2
"""In which a number of seats is found that keeps the goal, or more of them than the first that did."""
_UNSIZED: Final = -3.0
_BOUNDED: Final = -2.0
_UNKNOWN: Final = -1.0
"""In place of how fast an entry is about: not known yet is how many replicas it takes, how many at least, or how fast
they are."""
Progress = Callable[[int, int], None]
"""Is told how many loads were played, of how many at most."""


@dataclass(frozen=True, slots=True)
class SearchFindings:
    """What serves and what does not, of one search.

    ``unplayed``: ids of GPUs that come at a higher price. ``is_cut``: it ended before anything served the load.
    """

    deployments: tuple[PlannedDeployment, ...]
    misses: tuple[Miss, ...]
    num_tried: int
    num_played: int = 0
    unplayed: frozenset[str] = frozenset()
    is_cut: bool = False


@dataclass(order=True)
class _Entry:
    """A choice with a number of replicas, in the order in which they are looked at."""

    price: Price
    rough: float
    number: int
    choice: DeploymentChoice = field(compare=False)
    replicas: int = field(compare=False)


class _Played(NamedTuple):
    """A candidate and what its play says."""

    found: Candidate
    deployment: PlannedDeployment


@dataclass
class Frontier:
    """One search. ``budget``: dollars per hour. ``most_plays``: after which only what was found counts. ``is_aside``:
    nobody asks what others lack."""

    basis: PlanBasis
    formats: Sequence[FormatPair]
    budget: float | None
    most_plays: int = MOST_PLAYS
    progress: Progress | None = None
    is_aside: bool = False
    num_tried: int = 0
    num_played: int = 0
    _num_pushed: int = 0
    _num_spared: int = 0
    _heap: list[_Entry] = field(default_factory=list)
    _misses: list[Miss] = field(default_factory=list)
    _met: list[PlannedDeployment] = field(default_factory=list)
    _likely: dict[tuple[object, ...], PlannedDeployment] = field(default_factory=dict)
    _slow: list[Candidate] = field(default_factory=list)
    _rough_of: dict[tuple[object, ...], float] = field(default_factory=dict)
    """Of what serves the load as asked, by GPU, price and formats: how fast its quickest layout is about."""
    _is_cut: bool = False
    _candidates: dict[tuple[object, ...], Candidate | Miss] = field(default_factory=dict)
    _across: dict[str, list[DeploymentChoice]] = field(default_factory=dict)
    """By GPU: instances over several nodes, for where one node is not enough."""

    @property
    def _num_settled(self) -> int:
        """Loads that were played, or need not be."""
        return self.num_played + self._num_spared

    @property
    def is_thorough(self) -> bool:
        """Whether nothing is left out that averages call slower."""
        return self.most_plays >= THOROUGH_PLAYS

    def run(self) -> SearchFindings:
        """Look from cheap to dear until the answer cannot change any more."""
        for choice in self._first_choices():
            self._enter(choice)
        while self._heap or self._cross_nodes():
            entry = heapq.heappop(self._heap)
            if self._is_done(entry):
                heapq.heappush(self._heap, entry)
                break
            if not self._pushed_back(entry) and not self._is_pointless(entry):
                self._look_at(entry)
        self._polish()
        if not self._met and not self.basis.request.goal.is_asked:
            self._play_slow()
        found = sorted([*self._met, *self._likely.values()], key=rank)
        dearer = {entry.choice.gpu.id for entry in self._heap}
        return SearchFindings(
            tuple(found), tuple(self._misses), self.num_tried, self.num_played, frozenset(dearer), self._is_cut
        )

    # ---- what is looked at

    def _first_choices(self) -> Iterator[DeploymentChoice]:
        for gpu in self.basis.gpus:
            for pair in self.formats:
                if self.basis.refuses(pair, gpu):
                    continue
                within = [*self._choices(gpu, pair, across_nodes=False)]
                across = [*self._choices(gpu, pair, across_nodes=True)]
                self._across.setdefault(gpu.id, []).extend(across)
                yield from within

    def _choices(self, gpu: GpuProfile, pair: FormatPair, *, across_nodes: bool) -> Iterator[DeploymentChoice]:
        for layout in self.basis.layouts(pair.weights, gpu, across_nodes=across_nodes):
            yield DeploymentChoice(gpu, layout, pair.weights, pair.kv_cache_dtype)

    def _cross_nodes(self) -> bool:
        """Enter the instances over several nodes of GPUs that no instance within a node keeps the goal on."""
        served = {each.choice.gpu.id for each in self._met}
        for gpu_id in [*self._across]:
            choices = self._across.pop(gpu_id)
            for choice in choices if gpu_id not in served else ():
                self._enter(choice)
        return bool(self._heap)

    def _enter(self, choice: DeploymentChoice) -> None:
        """At the price of one replica: how many it takes is asked when that comes up."""
        if self.basis.most_replicas(choice) >= 1:
            self.num_tried += 1
            self._push(choice, 1, _UNSIZED)

    def _push(self, choice: DeploymentChoice, replicas: int, rough: float = _UNKNOWN) -> None:
        price = price_of(choice.gpu, self.basis.num_gpus(choice, replicas))
        if within_budget(price, self.budget):
            self._num_pushed += 1
            heapq.heappush(self._heap, _Entry(price, rough, self._num_pushed, choice, replicas))

    def _pushed_back(self, entry: _Entry) -> bool:
        """Whether ``entry`` was sized, or asked how fast it is about, and comes again or not at all."""
        if entry.rough in (_UNSIZED, _BOUNDED):
            try:
                if entry.rough == _UNSIZED:
                    self._bound(entry.choice, entry.replicas)
                else:
                    self._size(entry.choice, entry.replicas)
            except KvplanError as error:
                self.basis.refusals.setdefault(entry.choice.gpu.id, error)
            return True
        if entry.rough != _UNKNOWN:
            return False
        found, goal = self._candidate(entry.choice, entry.replicas), self.basis.request.goal
        if isinstance(found, Candidate) and found.is_hopeless(goal) and (miss := too_slow(found)).is_final:
            self._misses.append(miss)
            return True
        rough = found.rough_score(goal) if isinstance(found, Candidate) else self._quickest(entry)
        heapq.heappush(self._heap, replace(entry, rough=rough))
        return True

    def _bound(self, choice: DeploymentChoice, replicas: int) -> None:
        """Push it with the replicas that it takes at least: most come at a higher price than the answer then."""
        most = self.basis.most_replicas(choice)
        answering = least_that_answer(self.basis, choice)
        if answering > most and self.is_aside:
            return
        if replicas < answering <= most:  # of what never answers in time it is told what it lacks with fewer
            self._push(choice, math.ceil(answering), _UNSIZED)
            return
        found = [least_replicas(self.basis, each) for each in self._with_budgets(choice)]
        if isinstance(found[0], Miss):
            self._misses.append(found[0])
            return
        least = min(each for each in found if not isinstance(each, Miss))
        if least > most:
            self._note_lack(choice)
        else:
            self._push(choice, max(math.ceil(least), replicas), _BOUNDED)

    def _size(self, choice: DeploymentChoice, least: int) -> None:
        """Push it with as few replicas as hold the load, at least so many."""
        count = fewest(self.basis.most_replicas(choice), lambda count: self._holds(choice, count), least)
        if count is None:
            self._note_lack(choice)
        else:
            self._push(choice, count)

    def _note_lack(self, choice: DeploymentChoice) -> None:
        """A miss: the largest number of replicas does not hold the load."""
        if self.is_aside:
            return
        last = self._candidate(choice, self.basis.most_replicas(choice))
        assert isinstance(last, Miss), "the largest number does not hold the load"
        self._misses.append(last)

    def _holds(self, choice: DeploymentChoice, replicas: int) -> bool:
        """Whether so many hold the load, with the default or another token budget: a small one leaves more to the KV
        cache, and under a rate each answers as many requests as it does."""
        return any(isinstance(self._candidate(each, replicas), Candidate) for each in self._with_budgets(choice))

    def _with_budgets(self, choice: DeploymentChoice) -> Iterator[DeploymentChoice]:
        """``choice`` with the token budgets that decide how many replicas hold the load."""
        others = self.basis.other_step_tokens(choice)
        for tokens in (None, *(others if self.basis.workload.num_users is None else others[:1])):
            yield choice.for_all(tokens)

    def _candidate(self, choice: DeploymentChoice, replicas: int) -> Candidate | Miss:
        """See ``candidate``: the same choice is asked about for its room, its speed, and beside others."""
        key = (choice.key, replicas)
        if key not in self._candidates:
            self._candidates[key] = candidate(self.basis, choice, replicas)
        return self._candidates[key]

    # ---- what need not be looked at

    @property
    def _best_price(self) -> Price | None:
        return min((price_of(each.choice.gpu, each.num_gpus) for each in self._met), default=None)

    def _is_done(self, entry: _Entry) -> bool:
        """Whether what comes now can only be dearer than the answer, and enough stands beside that."""
        best = self._best_price
        if best is None:
            self._is_cut = self._num_settled >= _PATIENCE * self.most_plays
            return self._is_cut
        if entry.price <= best:
            return False
        budget = self.basis.request.usd_per_hour
        if within_budget(best, budget) and not within_budget(entry.price, budget):
            return True
        if self._num_settled >= self.most_plays:
            return True
        gpus = self.basis.gpus
        return len(gpus) <= _NAMED and len(self._met) >= 3 * len(gpus) and self._is_served(gpus)

    def _is_served(self, gpus: Sequence[GpuProfile]) -> bool:
        return {gpu.id for gpu in gpus} <= {each.choice.gpu.id for each in self._met}

    def _is_pointless(self, entry: _Entry) -> bool:
        """Whether the same GPUs serve it already in a layout that is clearly faster or, if dearer, at all as fast."""
        best = self._best_price
        roughest = self._rough_of.get((entry.choice.gpu.id, entry.price, entry.choice.formats))
        if roughest is None or self.is_thorough:
            return False
        if entry.price != best:
            return entry.rough > roughest * _NOT_FASTER
        limit = roughest * _CLEARLY_WORSE
        return entry.rough > limit and self._quickest(entry) > limit

    def _quickest(self, entry: _Entry) -> float:
        """How fast it is about with the token budget that suits it best."""
        found = self._budgets(entry.choice, entry.replicas)
        return found[0].rough_score(self.basis.request.goal) if found else math.inf

    # ---- playing

    def _look_at(self, entry: _Entry) -> None:
        """Play the choice with the token budgets that are quickest by averages; again with more replicas if need be."""
        goal, best_price = self.basis.request.goal, self._best_price
        may_wait = best_price is None or entry.price <= best_price  # for a seat: nobody pays more for that
        found = [each for each in self._budgets(entry.choice, entry.replicas) if may_wait or not each.waits]
        hopeful = [each for each in found if each.may_keep(goal)]
        fewer = map(with_fewer_seats, found[:_MOST_BUDGETS] if may_wait and not hopeful else ())
        tried = hopeful or [each for each in fewer if each is not None]
        if not tried:
            self._slow += found[:1]
            self._more(entry, found[0] if found else None, None, for_all=not may_wait)
            return
        best = min(self._played(tried), key=_rank_of)
        served = best if best.deployment.verdict.meets else None
        if served is None and may_wait:
            served = self._with_fewer_seats(best)
        if served is not None:
            self._met.append(served.deployment)
            key = (entry.choice.gpu.id, entry.price, entry.choice.formats)
            self._rough_of[key] = min(served.found.rough_score(goal), self._rough_of.get(key, math.inf))
            if served.deployment.waits:  # what makes nobody wait for a seat costs more, and stands beside it
                self._more(entry, *(best if hopeful else (found[0], None)), for_all=True)
            return
        verdict = best.deployment.verdict
        if verdict.possible and (goal.is_asked or verdict.broken is None):
            self._likely.setdefault(entry.choice.layout_key, best.deployment)
        self._slow.append(best.found)
        self._more(entry, *(best if hopeful else (found[0], None)))

    def _played(self, tried: Sequence[Candidate]) -> Iterator[_Played]:
        """Play those of ``tried`` that are quickest by averages, until one keeps the goal."""
        if self.is_thorough:
            yield from (_Played(each, self._play(each)) for each in tried)
            return
        played: _Played | None = None
        for each in tried[:_MOST_BUDGETS]:
            if played is not None and not self._may_be_shown(each, played):
                self._num_spared += 1
                continue
            played = _Played(each, self._play(each))
            yield played
            if played.deployment.verdict.meets:
                return

    @staticmethod
    def _may_be_shown(found: Candidate, beside: _Played) -> bool:
        """Whether it may keep the goal, surely or not, by the play of another budget; or be better than that one is."""
        return beside.deployment.verdict.possible or would_keep(found, *beside, confidence=0.5)

    def _with_fewer_seats(self, played: _Played) -> _Played | None:
        """What writes too slowly to everybody, or may not hold everybody, with so few seats that it keeps the goal."""
        for _ in range(_PLAYS_OF_SEATS):
            found = with_fewer_seats(played.found, tpot_to_keep(played.deployment))
            if found is None:
                return None
            played = _Played(found, self._play(found))
            if played.deployment.verdict.meets:
                return played
            if played.deployment.verdict.misses_other_than("tpot"):
                return None  # fewer seats make the others wait longer
        return None

    def _budgets(self, choice: DeploymentChoice, replicas: int) -> list[Candidate]:
        """``choice`` with each token budget, the quickest by averages first; the default before its like."""
        goal = self.basis.request.goal
        return sorted(self._that_hold(choice, replicas), key=lambda each: round(each.rough_score(goal), 3))

    def _that_hold(self, choice: DeploymentChoice, replicas: int, beside: int | None = None) -> Iterator[Candidate]:
        """``choice`` with each token budget that holds the load, the default first.

        ``beside``: another number of replicas, whose speeds say of some budgets that so many keep no goal: these are
        left out before their start-up is predicted.
        """
        for tokens in (None, *self.basis.other_step_tokens(choice)):
            budget = choice.for_all(tokens)
            known = None if beside is None else self._candidates.get((budget.key, beside))
            if isinstance(known, Candidate) and not known.leaves_open(self.basis.request.goal, replicas):
                continue
            try:
                each = self._candidate(budget, replicas)
            except KvplanError:
                continue
            if isinstance(each, Candidate):
                yield each

    def _play(self, found: Candidate) -> PlannedDeployment:
        self.num_played += 1
        if self.progress is not None:
            self.progress(self.num_played, self.most_plays)
        return evaluate(found)

    def _more(
        self, entry: _Entry, found: Candidate | None, played: PlannedDeployment | None, *, for_all: bool = False
    ) -> None:
        """Enter the choice again with more replicas, or note what it lacks with all that are allowed.

        ``for_all``: where nobody waits for a seat.
        """
        choice, most, goal = entry.choice, self.basis.most_replicas(entry.choice), self.basis.request.goal
        verdict = None if played is None else played.verdict
        miss = None if found is None else too_slow(found, verdict)
        if miss is not None and miss.is_final:
            self._misses.append(miss)
            return

        def may_keep(count: int, share: float = 1.0) -> bool:
            if found is None or played is None:
                holding = self._that_hold(choice, count, beside=entry.replicas)
                return any(each.may_keep(goal) and not (for_all and each.waits) for each in holding)
            again = self._candidate(played.choice.for_all(played.choice.max_num_batched_tokens), count)
            if not isinstance(again, Candidate) or (for_all and again.waits):
                return False
            keeps = would_keep(again, found, played, share)
            return keeps or (not for_all and with_fewer_seats(again, tpot_to_keep(played)) is not None)

        next_count = entry.replicas + 1
        more = None if next_count > most else fewest(most, may_keep, next_count)
        if more is None and next_count <= most:
            more = fewest(most, lambda count: may_keep(count, _LEFT_OF_QUEUES), next_count)
        if more is not None:
            self._push(choice, more)
        elif miss is not None:
            self._misses.append(miss)

    def _polish(self) -> None:
        """The answer with every token budget: the one that is played first is the quickest by averages only."""
        if not self._met:
            return
        first = best = min(self._met, key=rank)
        plain = self._budgets(best.choice.for_all(None), best.replicas)
        best = self._best_of(best, plain)
        for _ in range(_PLAYS_OF_SEATS if best.waits else 0):
            best = self._best_of(best, [each for each in plain if each.choice.has_budget_of(best.choice)])
        if best.waits:  # a tail grows less with a seat than averages do
            more = (one_seat_more(each, best.choice.max_num_seqs) for each in plain[:_MOST_BUDGETS])
            best = min([best, *(self._play(each) for each in more if each is not None)], key=rank)
        self._met = [best if each is first else each for each in self._met]

    def _best_of(self, best: PlannedDeployment, others: Sequence[Candidate]) -> PlannedDeployment:
        """``best``, or what is better of ``others``: with as many seats as keep the goal, where ``best`` lacks some."""
        if best.waits:
            goal, most_tpot = self.basis.request.goal, tpot_to_keep(best)
            others = [with_fewer_seats(each, most_tpot) or each for each in others]
            others = [each for each in others if each.may_keep(goal)]
        played = [self._play(each) for each in others if each.choice != best.choice]
        return min([best, *played], key=rank)

    def _play_slow(self) -> None:
        """Where nothing is readable, what is quickest for its price all the same."""
        by_cost = sorted(self._slow, key=cost_of_tokens)
        chosen: dict[tuple[str, int], Candidate] = {}
        for each in by_cost:
            chosen.setdefault((each.choice.gpu.id, each.replicas * each.choice.layout.num_gpus), each)
        for each in [*chosen.values()][:10]:
            self._likely[each.choice.key] = self._play(each)


def _rank_of(played: _Played) -> tuple[object, ...]:
    return rank(played.deployment)
