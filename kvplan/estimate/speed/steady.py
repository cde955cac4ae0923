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
from dataclasses import dataclass, replace
from typing import Final

from kvplan.estimate.speed.queueing.front_end import FrontEnd

_PRECISION: Final = 1e-3


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
        """Of a request's time, that until its first token."""
        return self.ttft_seconds / self.e2el_seconds


@dataclass(frozen=True, slots=True)
class PromptReading:
    """How an instance reads a prompt. ``seconds``: added to the steps that read it, through all stages in turn.

    chunks: steps' token budgets that it takes, below 1 where several prompts share a step. num_stages, num_groups: of
    the instance; each works on a step of its own. steps_before: that a request which comes while others decode waits
    for: the rest of the one under way, and another where that is already composed.
    """

    seconds: float
    chunks: float = 1.0
    num_stages: int = 1
    num_groups: int = 1
    steps_before: float = 0.5

    @property
    def at_once(self) -> int:
        """Prompts that are read side by side."""
        return self.num_stages * self.num_groups

    @property
    def num_steps(self) -> int:
        """Whole ones in which it is read."""
        return max(math.ceil(self.chunks), 1)

    @property
    def first_seconds(self) -> float:
        """Until it has been read: stages work on different chunks of it, each a chunk later than the one before."""
        return self.seconds * (self.num_steps + self.num_stages - 1) / (self.num_steps * self.num_stages)


def steady_state(step: float, prompt: PromptReading, num_users: float, output_tokens: int) -> SteadyState:
    """From the seconds of one decode step, and of one prompt beside it."""
    others, added = max(num_users - 1, 0.0), prompt.seconds / prompt.at_once
    served = prompt.chunks / prompt.at_once
    to_read = _steps_to_read(num_users, output_tokens, served)
    of_others = added * others / (output_tokens + to_read)
    each = step + of_others
    in_line = (to_read - served) * (step + added / served)
    in_step = min(others, 1.0) * (prompt.steps_before * each + prompt.num_steps * step + of_others)
    first = in_line + in_step + prompt.first_seconds
    return SteadyState(num_users, first, each, first + max(output_tokens - 1, 0) * each)


def _steps_to_read(num_users: float, away: float, served: float) -> float:
    """Steps from a request's coming until its prompt is read, of ``num_users`` whose answers take ``away`` steps.

    Mean value analysis of one server that takes ``served`` steps for each customer, with Schweitzer's approximation:
    one who comes finds (n - 1) / n of the average queue, of which the one being served is half done.
    """
    away_less = away - served * num_users
    root = away_less**2 + 4 * served * (away - served * (num_users - 1) / 2)
    return (math.sqrt(root) - away_less) / 2


def num_decoding(num_users: float, output_tokens: int, served_beside: Callable[[float], float]) -> float:
    """How many users decode in a step in which one of them does; the others wait for their prompts to be read.

    served_beside: steps that each prompt takes, while so many decode: the more do, the less of a step's budget it has.
    """
    if num_users <= 1:
        return num_users

    def found(share: float) -> float:
        """Of the time of the other users that they decode, where each takes the others to decode for ``share``."""
        to_read = _steps_to_read(num_users, output_tokens, served_beside(1 + (num_users - 1) * share))
        return output_tokens / (output_tokens + to_read)

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
    late = max(front_end.seconds(1), least - state.e2el_seconds)
    return replace(state, ttft_seconds=state.ttft_seconds + late, e2el_seconds=state.e2el_seconds + late)
