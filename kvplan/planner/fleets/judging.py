"""Whether a played fleet keeps the service level: window by window, with the published interval of each figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvplan.catalog.published_errors import ErrorInterval, FigureName
from kvplan.estimate.speed.latency import FIGURES, Range, SpeedModel
from kvplan.fleet.replicas.fleet import FleetPlay
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.windows import TraceWindow, sent_by_window, window_of, windows_of
from kvplan.planner.choices.verdict import ExpectedBound, Figure, share_at_most
from kvplan.planner.question.slo import Bound, Goal, Statistic

_COMPARED: dict[str, FigureName] = {"ttft": "ttft", "tpot": "tpot"}
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class Bar:
    """What a fleet of a choice has to show: bounds of ``goal``, and factors between which measurements of such
    predictions lie. share_of_windows: that have to keep them."""

    goal: Goal
    intervals: dict[FigureName, ErrorInterval | None]
    share_of_windows: float = 1.0

    @staticmethod
    def of(goal: Goal, model: SpeedModel, share_of_windows: float, num_users: float = 1.0) -> Bar:
        """Return the bar of a replica as fast as ``model``, with ``num_users`` in progress."""
        found = {name: model.error_interval(name, num_users) for name in FIGURES}
        return Bar(goal, found, share_of_windows)

    def ends(self, name: str, statistic: Statistic, middle: float) -> Range:
        """Between which 9 in 10 measurements of ``middle`` seconds lie. A request is its first token and the others."""
        names = [_COMPARED[name]] if name in _COMPARED else ["ttft", "tpot"]
        found = (self.intervals[each] for each in names)  # type: ignore[index]
        known = [each.at(statistic) for each in found if each is not None]
        if len(known) < len(names):
            return Range(0.0, math.inf)
        return Range(middle * min(each.low for each in known), middle * max(each.high for each in known))

    def seen(self, window: TraceWindow) -> list[ExpectedBound]:
        """Each bound with the window's figure, and how sure it is that it is kept."""
        found = []
        for bound in self.goal.slo.bounds():
            middle = window.at(bound.name, bound.statistic)
            if middle is not None:
                figure = Figure(middle, self.ends(bound.name, bound.statistic, middle))
                found.append(ExpectedBound(bound, figure, share_at_most(figure, bound.seconds)))
        return found

    def needed(self, bound: Bound) -> float:
        """Seconds that a figure may have at most for ``bound`` to be kept as surely as the goal asks; what is read
        without a service level is kept by the middle."""
        if not self.goal.is_asked:
            return bound.seconds
        figure = Figure(1.0, self.ends(bound.name, bound.statistic, 1.0))
        return ExpectedBound(bound, figure, 0.0).shrunk_to(self.goal.confidence)

    def judge(self, play: FleetPlay, seconds: float, judged_windows: frozenset[int] | None = None) -> FleetVerdict:
        """Judge the windows of ``play``."""
        return self.judge_windows(windows_of(play, seconds), judged_windows)

    def judge_windows(
        self, windows: Sequence[TraceWindow], judged_windows: frozenset[int] | None = None
    ) -> FleetVerdict:
        """Judge ``windows``, or those at ``judged_windows``."""
        judged = []
        for window in windows:
            place = window_of(window.start + window.seconds / 2, window.seconds)
            if judged_windows is not None and place not in judged_windows:
                continue
            seen = self.seen(window)
            sure = min((each.confidence for each in seen), default=1.0)
            ratios = [each.figure.middle / self.needed(each.bound) for each in seen]
            ratio = max(ratios, default=0.0)
            worst = seen[ratios.index(ratio)] if seen else None
            judged.append(WindowVerdict(window, tuple(seen), sure, ratio, worst))
        return FleetVerdict(self, tuple(judged))

    def num_that_may_break(self, num_windows: int) -> int:
        """Count the windows that may break. A hair over the share is as good: shares of few windows are not round."""
        return int(num_windows * (1 - self.share_of_windows) + 1e-9)


class WindowVerdict(NamedTuple):
    """confidence: that the window keeps every bound. ratio: the largest of its figures to what the goal needs, at most
    1 where it keeps it; worst: that bound."""

    window: TraceWindow
    seen: tuple[ExpectedBound, ...]
    confidence: float
    ratio: float
    worst: ExpectedBound | None

    @property
    def keeps(self) -> bool:
        return self.ratio <= 1.0

    def of(self, bound: Bound) -> Figure | None:
        """Return its figure; None where no request of the window has one, as answers of one token have no TPOT."""
        return next((each.figure for each in self.seen if each.bound == bound), None)


@dataclass(frozen=True, slots=True)
class FleetVerdict:
    """All windows of a play."""

    bar: Bar
    windows: tuple[WindowVerdict, ...]

    @property
    def ranked(self) -> list[WindowVerdict]:
        """The worst first."""
        return sorted(self.windows, key=lambda each: -each.ratio)

    @property
    def deciding(self) -> WindowVerdict:
        """The worst window that has to keep the level: some may break it where a share of them is asked for."""
        ranked = self.ranked
        return ranked[min(self.bar.num_that_may_break(len(ranked)), len(ranked) - 1)]

    @property
    def num_broken(self) -> int:
        return sum(not each.keeps for each in self.windows)

    @property
    def keeps(self) -> bool:
        return self.deciding.keeps

    @property
    def confidence(self) -> float:
        """Confidence that as many windows keep the level as were asked for."""
        ordered = sorted(each.confidence for each in self.windows)
        return ordered[min(self.bar.num_that_may_break(len(ordered)), len(ordered) - 1)]


def hopeless(
    bar: Bar, requests: Sequence[FleetRequest], seconds: float, judged_windows: frozenset[int] | None = None
) -> Callable[[list[Seen]], bool]:
    """Return what says of requests that have ended whether the others cannot save the service level any more.

    A percentile is missed once more requests of a window are beyond the bound than may be, and an average once those
    that ended take as long as all may together. Requests that wait for others may be sent in another window than the
    file says, so with these nothing is given up.
    """
    if any(each.after is not None for each in requests):
        return lambda seen: False
    sent = sent_by_window(requests, seconds)
    if judged_windows is not None:
        sent = {place: count for place, count in sent.items() if place in judged_windows}
    most_broken = bar.num_that_may_break(len(sent))
    bounds = [(each, bar.needed(each)) for each in bar.goal.slo.bounds()]
    beyond: dict[tuple[int, str], float] = {}
    broken: set[int] = set()
    looked_at = 0

    def stop(seen: list[Seen]) -> bool:
        nonlocal looked_at
        for each in seen[looked_at:]:
            place = window_of(each.sent, seconds)
            if place not in sent or place in broken:
                continue
            for bound, needed in bounds:
                value = getattr(each, f"{bound.name}_seconds")
                if value is None:
                    continue
                count = sent[place]
                if bound.statistic == "mean":
                    beyond[place, bound.name] = beyond.get((place, bound.name), 0.0) + value
                    is_broken = beyond[place, bound.name] > needed * count
                else:
                    beyond[place, bound.name] = beyond.get((place, bound.name), 0) + (value > needed)
                    is_broken = beyond[place, bound.name] > count - 1 - int(QUANTILES[bound.statistic] * (count - 1))
                if is_broken:
                    broken.add(place)
        looked_at = len(seen)
        return len(broken) > most_broken

    return stop
