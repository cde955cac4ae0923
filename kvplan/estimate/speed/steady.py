"""Users who each send the next request when the last one has been answered, in closed form: what one of them sees.

Steps are the clock of such an instance. A sequence decodes one token in each, also in those that read somebody's
prompt, which only take longer. Answers end, and requests come, once in so many steps however long these are: beside
prompts of seconds hardly anybody comes while one is being read. So the queue for reading is one of ``num_users``
customers who are away for the steps of an answer and are served for the steps of a prompt; its waits are turned into
seconds afterwards. A queue in seconds, of requests that come whatever the engine does, is up to eight times as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvplan.estimate.speed.queueing.front_end import FrontEnd

_PRECISION: Final = 1e-3
_MATTERS: Final = 0.05
"""Share of an answer's time from which on it matters how many steps a request is with the server."""


@dataclass(frozen=True, slots=True)
class SteadyState:
    """``num_users`` requests in progress at all times on one instance. Seconds."""

    num_users: float
    ttft_seconds: float
    tpot_seconds: float
    e2el_seconds: float

    @property
    def requests_per_second(self) -> float:
        return self.num_users / self.e2el_seconds

    @property
    def reading_share(self) -> float:
        """Share of a request's time until its first token."""
        return self.ttft_seconds / self.e2el_seconds


@dataclass(frozen=True, slots=True)
class PromptReading:
    """How an instance reads a prompt.

    chunks: steps' token budgets that it takes, below 1 where several prompts share a step. num_stages: of the instance,
    each of which works on a chunk of its own; a step is a pass through all of them. steps_before: that a request which
    comes while others decode waits for: the rest of the one under way, and another where that is already composed.
    seconds_away: in which the server has a request, and the engine does not.
    """

    chunks: float = 1.0
    num_stages: int = 1
    steps_before: float = 0.5
    seconds_away: float = 0.0

    @property
    def share_of_steps(self) -> float:
        """Steps' budgets that it takes, those of all stages together."""
        return self.chunks / self.num_stages

    @property
    def num_chunks(self) -> int:
        """Whole ones in which it is read."""
        return max(math.ceil(self.chunks), 1)

    @property
    def num_steps(self) -> int:
        """Whole ones that read it."""
        return math.ceil(self.num_chunks / self.num_stages)

    @property
    def own_steps(self) -> float:
        """Until it has been read: stages work on different chunks of it, each a chunk later than the one before."""
        return (self.num_chunks + self.num_stages - 1) / self.num_stages


class PromptsRead(NamedTuple):
    """Prompts, or their part, that a step reads: in the fullest of the data-parallel groups, and in all of them."""

    in_fullest: float
    in_all: float


@dataclass(frozen=True, slots=True)
class SharedSteps:
    """Seconds of an instance's steps: ``decoding`` of one that reads nothing, ``reading`` of one that reads so much.

    Users are shared by ``num_apart`` engines that do not wait for each other, each of ``num_together`` groups that take
    every step together.
    """

    decoding: float
    reading: Callable[[PromptsRead], float]
    num_apart: int = 1
    num_together: int = 1

    @property
    def num_groups(self) -> int:
        return self.num_apart * self.num_together


def steady_state(steps: SharedSteps, prompt: PromptReading, num_users: float, output_tokens: float) -> SteadyState:
    """What ``num_users`` users see whose prompts are read so. ``output_tokens``: steps that an answer takes, a token in
    each where none are drafted."""
    state = _with_away(steps, prompt, num_users, output_tokens, steps.decoding)
    if num_users > 1 and prompt.seconds_away > _MATTERS * output_tokens * steps.decoding:
        # Others are away for fewer steps where these are longer.
        state = _with_away(steps, prompt, num_users, output_tokens, state.tpot_seconds)
    return state


def _with_away(
    steps: SharedSteps, prompt: PromptReading, num_users: float, output_tokens: float, each: float
) -> SteadyState:
    """Where steps take ``each`` while a request is with the server."""
    away = output_tokens + prompt.steps_before + prompt.seconds_away / each
    groups, together = steps.num_groups, steps.num_together
    of_group = max(num_users / groups, min(num_users, 1.0))
    served = prompt.share_of_steps
    to_read = _steps_to_read(of_group, away, served)
    of_engine = max(num_users / steps.num_apart, min(num_users, 1.0))
    cycle = away + to_read
    # While one decodes, one's own prompt is not read, and its steps are free for the others of the group.
    per_group = (max(of_group - 1, 0.0) / (cycle - served) + max(of_engine - of_group, 0.0) / cycle) / together
    others = _others_read(prompt, per_group, together)
    reading = steps.reading(others.read) if others.share else steps.decoding
    each = steps.decoding + others.share * max(reading - steps.decoding, 0.0)
    own = steps.reading(others.with_one)
    full = max(1 / served, others.with_one.in_fullest)
    in_line = (to_read - served) * steps.reading(PromptsRead(full, full + (together - 1) * per_group))
    # One who comes at any moment meets long steps more often than short ones.
    rest = (others.share * reading**2 + (1 - others.share) * steps.decoding**2) / each / 2
    waiting = min(of_engine - 1, 1.0) * (rest + (prompt.steps_before - 0.5) * each)
    first = max(in_line, 0.0) + waiting + own * prompt.own_steps
    return SteadyState(num_users, first, each, first + max(output_tokens - 1, 0) * each)


class _OthersRead(NamedTuple):
    """The share of the steps that read anything, what one of these reads, and what one reads that has one's prompt."""

    share: float
    read: PromptsRead
    with_one: PromptsRead


def _others_read(prompt: PromptReading, per_group: float, num_groups: int) -> _OthersRead:
    """Say what others read, of groups that take their steps together, each of which begins ``per_group`` prompts in a
    step.

    Groups read independently of each other. A step has places for as many prompts as its budget holds, at least one,
    and each of them is taken or not whatever the others are.
    """
    own = prompt.num_stages / prompt.num_chunks  # while all stages have a chunk of it
    if not per_group:
        alone = PromptsRead(own, own)
        return _OthersRead(0.0, alone, alone)
    places = max(round(1 / prompt.share_of_steps), 1)
    taken = min(per_group * prompt.num_steps / places, 1.0)
    each = per_group / (places * taken)
    share = 1 - (1 - taken) ** (places * num_groups)
    most, more = _most_taken(places, taken, num_groups)
    read = PromptsRead(each * most / share, num_groups * per_group / share)
    beside = per_group * (num_groups - 1 / places)
    return _OthersRead(share, read, PromptsRead(own + each * more, own + beside))


def _most_taken(places: int, taken: float, num_groups: int) -> tuple[float, float]:
    """On average, how many of its ``places`` the fullest of the groups has taken (a binomial distribution); and how
    many more than one it has where one of them has one taken for certain."""
    most = most_beside = 0.0
    below = fewer = 0.0  # probabilities of at most ``number`` of all places, and of all but one
    for number in range(places):
        below += _taken(places, number, taken)
        most += 1 - below**num_groups
        if number:
            fewer += _taken(places - 1, number - 1, taken)
            most_beside += 1 - fewer * below ** (num_groups - 1)
        if number > places * taken and below > 1 - _PRECISION / num_groups:
            break
    return most, most_beside


def _taken(places: int, number: int, taken: float) -> float:
    """The probability that ``number`` of them are."""
    return math.comb(places, number) * taken**number * (1 - taken) ** (places - number)


def _steps_to_read(num_users: float, away: float, served: float) -> float:
    """Steps from a request's coming until its prompt is read, of ``num_users`` whose answers take ``away`` steps.

    Mean value analysis of one server that takes ``served`` steps for each customer, with Schweitzer's approximation:
    one who comes finds (n - 1) / n of the average queue, of which the one being served is half done.
    """
    away_less = away - served * num_users
    root = away_less**2 + 4 * served * (away - served * (num_users - 1) / 2)
    return (math.sqrt(root) - away_less) / 2


def num_decoding(
    num_users: float, output_tokens: float, served_beside: Callable[[float], float], steps_before: float = 0.0
) -> float:
    """How many users decode in a step in which one of them does; the others wait for their prompts to be read.

    served_beside: steps that each prompt takes, while so many decode: the more do, the less of a step's budget it has.
    """
    away = output_tokens + steps_before
    if num_users <= 1:
        return num_users

    def found(share: float) -> float:
        """Share of their time that the other users decode, where each takes the others to decode for ``share``."""
        to_read = _steps_to_read(num_users, away, served_beside(1 + (num_users - 1) * share))
        return output_tokens / (away + to_read)

    low = found(1.0)  # it falls with the share, so what is looked for lies between a share and what is found of it
    high = found(low)
    while high - low > _PRECISION:
        share = (low + high) / 2
        if found(share) > share:
            low = share
        else:
            high = share
    return 1 + (num_users - 1) * (low + high) / 2


def middle_state(best: SteadyState, worst: SteadyState) -> SteadyState:
    """The geometric middle of two ends."""

    def middle(low: float, high: float) -> float:
        return float((low * high) ** 0.5)

    return SteadyState(
        middle(best.num_users, worst.num_users),
        middle(best.ttft_seconds, worst.ttft_seconds),
        middle(best.tpot_seconds, worst.tpot_seconds),
        middle(best.e2el_seconds, worst.e2el_seconds),
    )


def behind_server(state: SteadyState, front_end: FrontEnd, output_tokens: int) -> SteadyState:
    """``state`` with the server's work until the first token, and no more requests than its event loops have time for.

    The engine does not wait for its server, so what is late waits before the engine and before the client, a request as
    a whole: its first token comes later, the others as far apart as before (as a play has it).
    """
    least = state.num_users * front_end.seconds(output_tokens) / front_end.servers
    late = max(front_end.first_token_seconds, least - state.e2el_seconds)
    return SteadyState(state.num_users, state.ttft_seconds + late, state.tpot_seconds, state.e2el_seconds + late)
