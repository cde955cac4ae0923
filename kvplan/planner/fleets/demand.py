"""What a trace asks of a fleet: its requests, its busiest window, and how few replicas could do."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from kvplan.estimate.speed.queueing.figures import Statistic
from kvplan.fleet.requests import FleetRequest, renumbered
from kvplan.fleet.routers.prefixes import PrefixMemory
from kvplan.fleet.windows import window_of
from kvplan.planner.fleets.judging import QUANTILES, Bar
from kvplan.planner.fleets.setups import FleetChoice
from kvplan.planner.question.slo import Bound, Goal

_FEW: Final = 1500
"""Requests that are played whole: looking at a part of them first saves nothing."""
_WARM_UP_WINDOWS: Final = 1
_SEATS_TRIED: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_MOST_SAMPLES: Final = 20_000
_SAMPLED: Final = 40
_ROUGH: Final = 0.8
"""Share of what the steady state takes for a step that is counted: it is to say what cannot do, not what does."""


@dataclass(frozen=True)
class Part:
    """Requests that are played together. judged: windows that count, None for all."""

    requests: tuple[FleetRequest, ...]
    judged: frozenset[int] | None = None

    def faster(self, factor: float) -> Part:
        """Return the same requests sent ``factor`` times as fast, with the windows that they fall into then left open.

        Pauses of people stay as they are."""
        return Part(tuple(replace(each, sent=each.sent / factor) for each in self.requests))


@dataclass(frozen=True)
class Demand:
    """The requests of a trace, by windows of ``window_seconds``."""

    requests: tuple[FleetRequest, ...]
    window_seconds: float

    @property
    def whole(self) -> Part:
        return Part(self.requests)

    @property
    def sample_seconds(self) -> float:
        """Between two looks at a fleet: ten in a window, and no more than so many over a long trace."""
        return max(self.window_seconds / 10, self.requests[-1].sent / _MOST_SAMPLES)

    @cached_property
    def reused_share(self) -> float | None:
        """Share of the prompts' tokens that a cache finds which keeps everything; None where nobody says."""
        if not any(each.runs for each in self.requests):
            return None
        return 1 - sum(self.new_tokens) / sum(each.num_prompt_tokens for each in self.requests)

    @cached_property
    def new_tokens(self) -> list[int]:
        """Tokens of each prompt that no prompt before it had: what a cache that keeps everything leaves to compute."""
        memory, found = PrefixMemory(), []
        for each in self.requests:
            found.append(max(each.num_prompt_tokens - memory.match(each), 1))
            memory.remember(each)
        return found

    @cached_property
    def busiest_window(self) -> int:
        """Its place: the window with the most tokens to compute, those of answers too."""
        tokens: dict[int, int] = {}
        for each, new in zip(self.requests, self.new_tokens, strict=True):
            place = window_of(each.sent, self.window_seconds)
            tokens[place] = tokens.get(place, 0) + new + each.num_output_tokens
        return max(tokens, key=lambda place: tokens[place])

    @cached_property
    def busiest(self) -> Part:
        """The busiest window, with one before it that fills queues and caches; all where there is little more."""
        place = self.busiest_window
        begin = (place - _WARM_UP_WINDOWS) * self.window_seconds
        end = (place + 1) * self.window_seconds
        taken = tuple(each for each in self.requests if begin <= each.sent < end)
        if len(self.requests) <= _FEW or 2 * len(taken) > len(self.requests):
            return self.whole
        return Part(renumbered(taken), frozenset([place]))

    @cached_property
    def busy(self) -> Busy:
        """The busiest window in figures."""
        place, seconds = self.busiest_window, self.window_seconds
        found = [
            (each, new)
            for each, new in zip(self.requests, self.new_tokens, strict=True)
            if window_of(each.sent, seconds) == place
        ]
        span = min(seconds, max(self.requests[-1].sent, 1.0))
        count = len(found)
        return Busy(
            count / span,
            sum(new for _, new in found) / count,
            sum(each.num_prompt_tokens for each, _ in found) / count,
            sum(each.num_output_tokens for each, _ in found) / count,
            tuple(sorted((new, each.num_prompt_tokens) for each, new in found)),
        )


@dataclass(frozen=True, slots=True)
class Busy:
    """Requests per second, and tokens on average: of prompts that are new, of prompts, of answers.

    prompts: (new tokens, tokens) of each, in order.
    """

    requests_per_second: float
    new_tokens: float
    prompt_tokens: float
    output_tokens: float
    prompts: tuple[tuple[int, int], ...] = ()


def could_begin(found: FleetChoice, busy: Busy, bar: Bar) -> bool:
    """Whether prompts that nobody waits beside are read fast enough, even by a cache that keeps everything."""
    alone = seconds_alone(found, busy, bar)
    return alone is None or alone.seconds <= bar.needed(alone.bound)


class Alone(NamedTuple):
    """The bound on TTFT, and seconds of its statistic for prompts that nobody waits beside."""

    bound: Bound
    seconds: float


def seconds_alone(found: FleetChoice, busy: Busy, bar: Bar) -> Alone | None:
    """None where TTFT has no bound."""
    bound = next((each for each in bar.goal.slo.bounds() if each.name == "ttft"), None)
    return None if bound is None else Alone(bound, _alone(found, busy, bound.statistic))


def _alone(found: FleetChoice, busy: Busy, statistic: Statistic) -> float:
    """Seconds until the first token of a prompt alone: that of the percentile, or an average."""
    prompts, last = busy.prompts, len(busy.prompts) - 1
    if statistic == "mean":
        step = max(len(prompts) // _SAMPLED, 1)
        taken = prompts[::step]
        return sum(_reading_seconds(found, *each) for each in taken) / len(taken)
    return _reading_seconds(found, *prompts[int(QUANTILES[statistic] * last)])


def _reading_seconds(found: FleetChoice, new: int, prompt: int) -> float:
    """Seconds of the steps that read ``new`` tokens behind those of ``prompt`` that are cached."""
    rules, seconds, computed = found.setup.rules, 0.0, prompt - new
    while computed < prompt:
        number = min(rules.max_num_batched_tokens, prompt - computed) if rules.chunks_prompts else prompt - computed
        pairs = number * (computed + (number + 1) / 2)
        computed += number
        seconds += found.setup.clock.seconds(number, 1, int(computed == prompt), computed, pairs)
    return seconds


def least_replicas(found: FleetChoice, busy: Busy, goal: Goal) -> int | None:
    """Return how many replicas are needed at the very least; None where no number would do.

    Of a replica whose cache keeps everything, in a steady state: each step decodes for so many sequences and reads as
    much of new prompts as they end. It takes no longer than the bound of a time per output token allows.
    """
    best, rules = 0.0, found.setup.rules
    pool = found.setup.pool.num_blocks * found.prediction.block_size
    held = busy.new_tokens + busy.output_tokens / 2
    tpot = next((each.seconds for each in goal.slo.bounds() if each.name == "tpot"), math.inf)
    for count in [each for each in _SEATS_TRIED if each < rules.max_num_seqs] + [rules.max_num_seqs]:
        if count > 1 and count * held > pool:
            break
        read = count * busy.new_tokens / max(busy.output_tokens, 1.0)
        room = rules.max_num_batched_tokens - count
        if read > room:
            if room <= 0:
                break
            read = float(room)
        ends = min(read / max(busy.new_tokens, 1.0), count / max(busy.output_tokens, 1.0))
        kv = int(count * (busy.prompt_tokens + busy.output_tokens / 2))
        pairs = count * (busy.prompt_tokens + busy.output_tokens / 2) + read * busy.prompt_tokens / 2
        seconds = _ROUGH * found.setup.clock.seconds(count + int(read), count + 1, count + 1, kv, pairs)
        if seconds > tpot:
            break
        best = max(best, ends / seconds)
    groups = max(rules.num_groups, 1)
    return max(math.ceil(busy.requests_per_second / (groups * best)), 1) if best else None
