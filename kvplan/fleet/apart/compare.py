"""Prefill and decode apart or not: pools of every ratio beside as many GPUs whose replicas do both.

Fleets are compared by the load that they take: the largest factor by which the trace may come faster while the service
level is kept, each of them played anew for every factor. Requests that wait for others (closed loops) come no faster
than they are answered; their fleets are compared by requests per second.

Both sides of such a ratio are predicted with the same steps, and yet it is not surer than either of them: what is wrong
with a step of prompts need not be wrong with one that decodes. So pools are called better only where they take more
than the published interval of throughput leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvplan.estimate.speed.queueing.figures import Distribution
from kvplan.fleet.apart.play import ApartFleet, ApartSetup, PoolSetup
from kvplan.fleet.replicas.fleet import Fleet
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.replicas.setup import ReplicaSetup
from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.interface import Router

Judge = Callable[[Sequence[Seen], float], float]
"""The largest ratio of what requests saw to its bound, at most 1 where the service level is kept. The second argument
is the factor by which they came faster: windows are as much shorter."""

_FEW: Final = 8
"""Ratios that are all played; of more, those that a search for the best one leads to."""
_PRECISION: Final = 0.02
"""To which the most load is found."""
_LEAST_SPEED: Final = 1 / 8
_MOST_SPEED: Final = 8.0
_RANKED: Final = 2
"""Splits whose most load is looked for: the best under the most load that replicas take that do both."""


@dataclass(frozen=True, slots=True)
class Split:
    """So many replicas that read prompts, and that decode; no prefill replica where all do both. prefill: which of the
    setups for reading prompts."""

    num_prefill: int
    num_decode: int
    prefill: int = 0

    @property
    def is_apart(self) -> bool:
        return self.num_prefill > 0


@dataclass(frozen=True, slots=True)
class PlayedSplit:
    """A fleet played at the trace's own speed. ratio: see ``Judge``. requests_per_second: from the first sending to the
    last end. most_speed: the largest factor of the load that keeps the service level; None in a closed loop.
    transfers: seconds of KV on its way; waits: for blocks of a decode replica."""

    split: Split
    num_gpus: int
    ratio: float
    ttft: Distribution
    tpot: Distribution | None
    requests_per_second: float
    transfers: Distribution | None = None
    waits: Distribution | None = None
    bytes_moved: float = 0.0
    most_speed: float | None = None


@dataclass(frozen=True, slots=True)
class SplitComparison:
    """splits: the best fleets of two pools, of ``num_ratios`` that there are. error_factor: a gain below it may be an
    error of the prediction. by_load: what is compared is the load that is taken; otherwise requests per second.
    """

    together: PlayedSplit
    splits: tuple[PlayedSplit, ...]
    num_ratios: int
    error_factor: float
    by_load: bool

    @property
    def best(self) -> PlayedSplit | None:
        """None where there are too few GPUs for two pools."""
        return self.splits[0] if self.splits else None

    @property
    def gain(self) -> float:
        """How many times as much as replicas that do both the best split takes; 0 without one."""
        if self.best is None:
            return 0.0
        return _taken(self.best, by_load=self.by_load) / max(_taken(self.together, by_load=self.by_load), 1e-9)

    @property
    def pays(self) -> bool:
        """Whether two pools are better by more than the error."""
        return self.gain > self.error_factor


def _taken(played: PlayedSplit, *, by_load: bool) -> float:
    return (played.most_speed or 0.0) if by_load else played.requests_per_second


@dataclass
class PoolComparison:
    """What all fleets of a comparison share. gpus: of a prefill, a decode and a replica that does both.

    other_prefill: replicas with other token budgets, which the best ratio is tried with too, as its steps need not be
    short for anybody who decodes. new_routers: three without a past, for prefill, decode and replicas that do both.
    """

    requests: Sequence[FleetRequest]
    apart: ApartSetup
    together: ReplicaSetup
    gpus: tuple[int, int, int]
    judge: Judge
    new_routers: Callable[[], tuple[Router, Router, Router]]
    other_prefill: tuple[PoolSetup, ...] = ()
    _known: dict[tuple[Split, float], PlayedSplit] = field(default_factory=dict)

    @property
    def by_load(self) -> bool:
        """Whether the load can be made larger by sending faster."""
        return all(each.after is None for each in self.requests)

    def compare(self, num_replicas: int, error_factor: float) -> SplitComparison:
        """``num_replicas`` that do both, and pools on as many GPUs at most."""
        prefill, decode, both = self.gpus
        most = num_replicas * both
        splits = [Split(n, (most - n * prefill) // decode) for n in range(1, most // prefill + 1)]
        splits = [each for each in splits if each.num_decode > 0]
        together = Split(0, num_replicas)
        if not self.by_load:
            ranked = self._ranked(splits, 1.0)
            found = tuple(self._play(each, 1.0) for each in ranked)
            return SplitComparison(self._play(together, 1.0), found, len(splits), error_factor, by_load=False)
        limit = self._most_speed(together, 1.0)
        ranked = self._ranked(splits, limit or _LEAST_SPEED)
        loads = {each: self._most_speed(each, limit or _LEAST_SPEED) for each in ranked}
        ranked.sort(key=lambda each: -loads[each])
        found = tuple(replace(self._play(each, 1.0), most_speed=loads[each]) for each in ranked)
        return SplitComparison(
            replace(self._play(together, 1.0), most_speed=limit), found, len(splits), error_factor, by_load=True
        )

    def _ranked(self, splits: Sequence[Split], speed: float) -> list[Split]:
        """Return the best at ``speed``, the best first: too few replicas of one kind are worse the fewer they are."""
        low, high = 0, len(splits) - 1
        while high - low >= _FEW:
            third = (high - low) // 3
            left, right = low + third, high - third
            if self._rank(splits[left], speed) <= self._rank(splits[right], speed):
                high = right
            else:
                low = left
        found = sorted(splits[low : high + 1], key=lambda each: self._rank(each, speed))
        others = [replace(each, prefill=place + 1) for each in found[:1] for place in range(len(self.other_prefill))]
        return sorted([*others, *found], key=lambda each: self._rank(each, speed))[:_RANKED]

    def _rank(self, split: Split, speed: float) -> tuple[float, float]:
        played = self._play(split, speed)
        return (played.ratio if self.by_load else 0.0, -played.requests_per_second)

    def _play(self, split: Split, speed: float) -> PlayedSplit:
        if (split, speed) not in self._known:
            self._known[split, speed] = self._play_at(split, speed)
        return self._known[split, speed]

    def _play_at(self, split: Split, speed: float) -> PlayedSplit:
        requests = [replace(each, sent=each.sent / speed) for each in self.requests]
        to_prefill, to_decode, to_both = self.new_routers()
        prefill, decode, both = self.gpus
        if not split.is_apart:
            seen = Fleet(self.together, split.num_decode, to_both).play(requests).seen
            return _played(split, split.num_decode * both, seen, self.judge(seen, speed))
        pool = (self.apart.prefill, *self.other_prefill)[split.prefill]
        fleet = ApartFleet(
            replace(self.apart, prefill=pool), split.num_prefill, split.num_decode, (to_prefill, to_decode)
        )
        play = fleet.play(requests)
        num_gpus = split.num_prefill * prefill + split.num_decode * decode
        found = _played(split, num_gpus, play.seen, self.judge(play.seen, speed))
        return replace(
            found,
            transfers=play.transfers,
            waits=Distribution.of(play.waits),
            bytes_moved=play.bytes_moved,
        )

    def _keeps(self, split: Split, speed: float) -> bool:
        return self._play(split, speed).ratio <= 1

    def _most_speed(self, split: Split, start: float) -> float:
        """The largest factor of the load that keeps the service level, from an eighth to eight times of what comes; 0
        for less."""
        low = high = start
        if self._keeps(split, start):
            while high < _MOST_SPEED and low == high:
                high = min(2 * low, _MOST_SPEED)
                low = high if self._keeps(split, high) else low
        else:
            while low > _LEAST_SPEED and low == high:
                low = max(high / 2, _LEAST_SPEED)
                high = high if self._keeps(split, low) else low
            if low == high:
                return 0.0
        while high / low > 1 + _PRECISION:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._keeps(split, middle) else (low, middle)
        return low


def _played(split: Split, num_gpus: int, seen: Sequence[Seen], ratio: float) -> PlayedSplit:
    tpots = [found for each in seen if (found := each.tpot_seconds) is not None]
    seconds = max(each.last for each in seen) - min(each.sent for each in seen)
    return PlayedSplit(
        split,
        num_gpus,
        ratio,
        Distribution.of([each.ttft_seconds for each in seen]),
        Distribution.of(tpots) if tpots else None,
        len(seen) / seconds,
    )
