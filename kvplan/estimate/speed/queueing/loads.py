"""What is sent to one instance: lengths of prompts and answers, and when each request comes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from kvplan.estimate.speed.queueing.sharing import PromptSharing

Spread = Literal["fixed", "uniform", "exponential", "quantiles"]
Quantiles = tuple[tuple[float, float], ...]
"""(share of the requests, tokens that these have at most), in order; the first share is 0."""
_PAUSES: Final = 64
"""Drawn together at least."""


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Tokens of prompts or answers: ``mean``, and how they spread around it.

    uniform: from ``least`` x the longest to the longest; exponential: as chats do, many short and few long ones.
    quantiles: interpolated between those stated, and not beyond the first and the last; ``mean`` does not count.
    longest: where they are cut off.
    """

    mean: float
    spread: Spread = "fixed"
    least: float = 1.0
    quantiles: Quantiles = ()
    longest: float = math.inf

    def draw(self, count: int, seed: int) -> list[int]:
        """``count`` lengths of at least 1: shares of the distribution that are evenly spaced, in mixed order."""
        if self.spread == "fixed":
            return [max(round(self.mean), 1)] * count
        shares = [(index + 0.5) / count for index in range(count)]
        random.Random(seed).shuffle(shares)
        return [max(round(min(self._at(share), self.longest)), 1) for share in shares]

    def _at(self, share: float) -> float:
        if self.spread == "uniform":
            longest = 2 * self.mean / (1 + self.least)
            return longest * (self.least + (1 - self.least) * share)
        if self.spread == "quantiles":
            return self._between(share)
        return -self.mean * math.log(1 - share)

    def _between(self, share: float) -> float:
        below = self.quantiles[0]
        for above in self.quantiles[1:]:
            if share <= above[0]:
                return below[1] + (above[1] - below[1]) * (share - below[0]) / (above[0] - below[0])
            below = above
        return below[1]


@dataclass(frozen=True, slots=True)
class Think:
    """``num_users`` who send one request at a time, each after a pause of ``seconds`` in the mean behind an answer.

    Pauses are exponentially distributed, as those of ``kvplan load --think-time`` are.
    """

    seconds: float
    num_users: int

    def shared_by(self, count: int) -> Think:
        """Return the pauses of one of ``count`` groups."""
        return replace(self, num_users=-(-self.num_users // count))

    def pauses(self, seed: int) -> Iterator[float]:
        """Yield without end evenly spaced shares of the distribution in mixed order, as many as there are users at a
        time, so that the mean is what was asked for however few they are.
        """
        rng, count = random.Random(seed), max(self.num_users, _PAUSES)
        while True:
            shares = [(index + 0.5) / count for index in range(count)]
            rng.shuffle(shares)
            yield from (-math.log(1 - share) * self.seconds for share in shares)


@dataclass(frozen=True, slots=True)
class TracedLoad:
    """Requests of a trace, some of which stand for all.

    name: of its file. pairs: (prompt, answer) of requests drawn at random. gaps: seconds between requests that came one
    after the other, when most came; none where the trace has no times. rate: requests per second of all that come.
    shares_prompts: whether the trace says what prompts begin with in common. longest: tokens of the longest request.
    """

    name: str
    pairs: tuple[tuple[int, int], ...]
    gaps: tuple[float, ...] = ()
    rate: float = 0.0
    shares_prompts: bool = False
    longest: int = 0

    def lengths(self, count: int, seed: int) -> list[tuple[int, int]]:
        """``count`` of the pairs: each as often as the others, in mixed order."""
        rng, found = random.Random(seed), list[tuple[int, int]]()
        while len(found) < count:
            found += rng.sample(self.pairs, len(self.pairs))
        return found[:count]

    def arrivals(self, count: int, requests_per_second: float) -> list[float]:
        """``count`` times in the trace's pattern, so many a second: one of three replicas gets every third request."""
        step = max(round(self.rate / requests_per_second), 1)
        times, now = [0.0], 0.0
        for number in range(step * count):
            now += self.gaps[number % len(self.gaps)]
            if (number + 1) % step == 0:
                times.append(now)
        times = times[:count]
        stretch = (count - 1) / requests_per_second / times[-1] if count > 1 and times[-1] > 0 else 1.0
        return [time * stretch for time in times]


@dataclass(frozen=True)
class PlayedLoad:
    """``num_requests`` requests.

    requests_per_second: of a Poisson process, or one whose gaps are gamma-distributed with the shape ``burstiness``, as
    those of ``vllm bench serve`` are; None where all are ready at once. max_concurrency: in flight at most; a
    further one is sent when another has ended. cached_tokens: of each prompt but the first, found in the prefix cache;
    first_cached_tokens: of the first.
    num_warmups, num_cooldowns: of the requests, the first and the last ones, which are served and not counted.
    num_running: of the warm-ups, those that are in the midst of their answers at the start, each at another place; the
    others are sent then. think: pauses of those who send one request after the other. sharing: what prompts begin with
    that others have too, before the ``prompts`` of so many tokens; with turns ``requests_per_second`` are those that
    begin a chat. trace: whose lengths its requests have and, where they come at a rate, whose pattern of arrivals.
    """

    prompts: LengthDistribution
    answers: LengthDistribution
    num_requests: int
    requests_per_second: float | None = None
    max_concurrency: int | None = None
    cached_tokens: int = 0
    num_warmups: int = 0
    num_cooldowns: int = 0
    num_running: int = 0
    seed: int = 0
    think: Think | None = None
    sharing: PromptSharing | None = None
    burstiness: float = 1.0
    trace: TracedLoad | None = None
    first_cached_tokens: int = 0

    def spread_as(self, spread: Spread, longest_request: int) -> PlayedLoad:
        """The same with lengths of another spread around their means, uniform as for ``steady_users``.

        Exponential lengths are cut where prompt and answer together could exceed ``longest_request``, which shortens
        their means.
        """
        if spread == self.prompts.spread:
            return self
        share = longest_request / (self.prompts.mean + self.answers.mean)

        def of(lengths: LengthDistribution) -> LengthDistribution:
            return LengthDistribution(
                lengths.mean, spread, longest=lengths.mean * share if spread == "exponential" else math.inf
            )

        return replace(self, prompts=of(self.prompts), answers=of(self.answers))

    def shared_as(self, sharing: PromptSharing, think_seconds: float) -> PlayedLoad:
        """The same of prompts that begin with what others did. Where requests come at a rate chats do, as much rarer as
        each has turns, and the next turn comes ``think_seconds`` after an answer."""
        if not sharing.finds_anything:
            return self
        rate, think = self.requests_per_second, self.think
        if rate is not None and sharing.turns > 1:
            rate, think = rate / sharing.turns, Think(think_seconds, 0)
        return replace(self, sharing=sharing, requests_per_second=rate, think=think)

    def shared_by(self, count: int) -> PlayedLoad:
        """What one of ``count`` groups is sent that share it evenly."""
        if count == 1:
            return self

        def share(number: int) -> int:
            return -(-number // count)

        return replace(
            self,
            num_requests=share(self.num_requests),
            requests_per_second=None if self.requests_per_second is None else self.requests_per_second / count,
            max_concurrency=None if self.max_concurrency is None else share(self.max_concurrency),
            num_warmups=share(self.num_warmups),
            num_cooldowns=share(self.num_cooldowns),
            num_running=share(self.num_running),
            think=None if self.think is None else self.think.shared_by(count),
        )

    @cached_property
    def lengths(self) -> Sequence[tuple[int, int]]:
        """(prompt, answer) of each request."""
        if self.trace is not None:
            return self.trace.lengths(self.num_requests, self.seed)
        prompts = self.prompts.draw(self.num_requests, self.seed)
        answers = self.answers.draw(self.num_requests, self.seed + 1)
        return list(zip(prompts, answers, strict=True))

    @cached_property
    def arrivals(self) -> Sequence[float]:
        """Seconds at which each is ready to be sent, in order: gaps are evenly spaced shares of the exponential
        distribution in mixed order, so that the rate is what was asked for however few requests there are. Those of
        another shape are drawn, and scaled to it."""
        if self.requests_per_second is None:
            return [0.0] * self.num_requests
        # Not the numbers that prompts are mixed by: a long gap would follow each long prompt.
        rng, now, found = random.Random(self.seed + 2), 0.0, [0.0] * (self.num_warmups if self.num_running else 0)
        count = self.num_requests - len(found)
        if self.trace is not None and self.trace.gaps:
            return found + self.trace.arrivals(count, self.requests_per_second)
        for gap in self._gaps(count, rng):
            found.append(now)
            now += gap / self.requests_per_second
        return found

    def _gaps(self, count: int, rng: random.Random) -> list[float]:
        """Between arrivals, 1 in the mean."""
        if self.burstiness == 1.0:
            shares = [(index + 0.5) / count for index in range(count)]
            rng.shuffle(shares)
            return [-math.log(1 - share) for share in shares]
        drawn = [rng.gammavariate(self.burstiness, 1.0) for _ in range(count)]
        total = sum(drawn) or 1.0
        return [gap * count / total for gap in drawn]


@dataclass(frozen=True)
class ListedLoad(PlayedLoad):
    """Requests that are known one by one. ``listed``: (prompt, answer) of each; ``times``: seconds at which it is sent,
    none where all are ready at once. Fewer ``num_requests`` are evenly spaced ones of them."""

    listed: tuple[tuple[int, int], ...] = ()
    times: tuple[float, ...] = ()

    @cached_property
    def lengths(self) -> Sequence[tuple[int, int]]:
        """See ``PlayedLoad``."""
        return [self.listed[place] for place in self._places]

    @cached_property
    def arrivals(self) -> Sequence[float]:
        """See ``PlayedLoad``."""
        return [self.times[place] for place in self._places] if self.times else [0.0] * self.num_requests

    @property
    def _places(self) -> Sequence[int]:
        return [index * len(self.listed) // self.num_requests for index in range(self.num_requests)]


_SPREAD: Final[tuple[Spread, float]] = ("uniform", 0.5)
_COUNTED: Final = 120
"""Requests that percentiles of a steady load are taken of."""


def steady_users(count: int, prompt_tokens: float, answer_tokens: float, reading: float = 0.0) -> PlayedLoad:
    """``count`` users who have been there for long; lengths are spread from two thirds of their mean to four thirds.

    reading: of their time, the share in which they wait for a first token.
    """
    spread, least = _SPREAD
    return PlayedLoad(
        LengthDistribution(prompt_tokens, spread, least),
        LengthDistribution(answer_tokens, spread, least),
        2 * count + _COUNTED,
        max_concurrency=count,
        num_warmups=count,
        num_cooldowns=count,
        num_running=_num_running(count, reading),
    )


def thinking_users(
    count: int,
    think_seconds: float,
    in_progress: float,
    prompt_tokens: float,
    answer_tokens: float,
    reading: float = 0.0,
) -> PlayedLoad:
    """``count`` users who have been there for long, of whom ``in_progress`` wait for an answer on average and the
    others think. reading: of the former's time, as above."""
    busy = min(max(round(in_progress), 1), count)
    return replace(
        steady_users(busy, prompt_tokens, answer_tokens, reading),
        num_requests=2 * busy + 2 * _COUNTED,
        max_concurrency=None,
        think=Think(think_seconds, count),
    )


def steady_rate(
    requests_per_second: float, in_progress: float, prompt_tokens: float, answer_tokens: float, reading: float = 0.0
) -> PlayedLoad:
    """A Poisson process that finds ``in_progress`` requests, as many as there are on average. reading: as above."""
    count, (spread, least) = max(round(in_progress), 0), _SPREAD
    return PlayedLoad(
        LengthDistribution(prompt_tokens, spread, least),
        LengthDistribution(answer_tokens, spread, least),
        2 * count + 2 * _COUNTED,
        requests_per_second,
        num_warmups=count,
        num_cooldowns=count,
        num_running=_num_running(count, reading),
    )


def _num_running(count: int, reading: float) -> int:
    """Count those of ``count`` requests that have a first token; at least one where there is any."""
    return min(count, max(round(count * (1 - reading)), 1))


def users(count: int, prompt_tokens: float, answer_tokens: float, rounds: int = 4) -> PlayedLoad:
    """A closed loop of ``count`` users, each of whom sends ``rounds`` requests one after the other."""
    return PlayedLoad(
        LengthDistribution(prompt_tokens), LengthDistribution(answer_tokens), count * rounds, max_concurrency=count
    )
