"""What a load asks of one replica: users who wait for their answers (closed), or requests at a rate (open).

A closed load has a fixed number of requests in progress, or of users who think between an answer and the next request:
by the interactive response time law users x latency / (latency + pause) of these are in progress. Under an open one as
many are in progress as arrive while one is answered (Little's law), at each end of the predicted speeds; where a
replica cannot answer them as fast as they come, the queue grows for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from kvplan.estimate.speed.latency import End, Range, ServingSpeed, SpeedModel
from kvplan.estimate.speed.steady import SteadyState
from kvplan.planner.question.request import Workload

_WORST_FIRST: Final[tuple[End, End]] = ("worst", "best")
_PRECISION = 1.05
"""Of the number of requests in progress."""


@dataclass(frozen=True)
class LoadedReplica:
    """One replica under its share of the load.

    ``num_users``: requests in progress, at the middle of the predicted speeds; infinite where the queue grows.
    ``seats``: which so many of them have, and the others wait for one.
    ``most_users``: the same at the slowest of them. ``middle``: None in that case. ``find_speed``: computes ``speed``,
    which is asked of few of the replicas that a plan looks at. ``supply``: requests per second that the replica can
    answer, None for a closed load. ``share``: how much of the range of speeds keeps up with the load, from 0 to 1.
    ``server_share``: how much of its time the replica's server would work, were only the engine to bound it.
    """

    num_users: float
    most_users: float
    middle: SteadyState | None
    find_speed: Callable[[], ServingSpeed] = field(repr=False, compare=False)
    supply: Range | None = None
    share: float = 1.0
    server_share: float = 0.0
    seats: float = math.inf

    @property
    def num_running(self) -> float:
        """Requests that have a seat."""
        return min(self.num_users, self.seats)

    @cached_property
    def speed(self) -> ServingSpeed:
        """Both ends of the predicted speeds."""
        return self.find_speed()

    @property
    def keeps_up(self) -> bool:
        return self.middle is not None


def serve_users(model: SpeedModel, num_users: int, seats: float = math.inf) -> LoadedReplica:
    """``num_users`` requests in progress at all times, of which those without one of the ``seats`` wait."""
    running = min(num_users, max(seats, 1))

    def find_speed() -> ServingSpeed:
        best, worst = (_in_line(model, num_users, running, end) for end in ("best", "worst"))
        return model.between(best, worst, running)

    middle, server_share = _in_line(model, num_users, running, "middle"), model.server_share(running)
    return LoadedReplica(num_users, num_users, middle, find_speed, server_share=server_share, seats=running)


def _in_line(model: SpeedModel, num_users: float, seats: float, end: End) -> SteadyState:
    """What ``num_users`` see, ``seats`` of whom are served: as many are before one who comes as wait."""
    state = model.steady(min(num_users, seats), end)
    if num_users <= seats:
        return state
    line = (num_users - seats) / state.requests_per_second
    return replace(
        state, num_users=num_users, ttft_seconds=state.ttft_seconds + line, e2el_seconds=state.e2el_seconds + line
    )


def serve_thinking(model: SpeedModel, num_users: int, think_seconds: float, seats: float = math.inf) -> LoadedReplica:
    """``num_users`` users, each of whom thinks for so long in the mean before the next request. Requests in progress
    without one of the ``seats`` wait."""
    seats = max(seats, 1)
    middle, worst = (_thinking(model, num_users, think_seconds, seats, end) for end in ("middle", "worst"))
    running = min(middle.num_users, seats)
    return LoadedReplica(
        middle.num_users,
        worst.num_users,
        middle,
        lambda: model.between(_thinking(model, num_users, think_seconds, seats, "best"), worst, running),
        server_share=model.server_share(running),
        seats=seats,
    )


def _thinking(model: SpeedModel, num_users: int, think_seconds: float, seats: float, end: End) -> SteadyState:
    """One who comes finds of the others those in progress, as many on average as if it were not there (the arrival
    theorem of closed networks): what it sees is what one of so many users without pauses sees."""
    low, high = 0.0, num_users - 1.0
    state = _in_line(model, num_users, seats, end)
    while high - low > max(_PRECISION - 1, (_PRECISION - 1) * low) / 5:
        others = (low + high) / 2
        state = _in_line(model, 1 + others, seats, end)
        if others * (1 + think_seconds / state.e2el_seconds) >= num_users - 1:
            high = others
        else:
            low = others
    return replace(state, num_users=num_users * state.e2el_seconds / (state.e2el_seconds + think_seconds))


def serve_rate(model: SpeedModel, requests_per_second: float, room: int) -> LoadedReplica:
    """Requests that arrive at a rate, at most ``room`` of them at once."""
    room = max(room, 1)
    supply = Range(*(model.steady(room, end).requests_per_second for end in _WORST_FIRST))
    worst = _at_rate(model, requests_per_second, room, "worst")
    # Not the middle of both ends: the nearer a queue is to growing for ever, the more it differs from that.
    is_kept_up_with = _keeps_up(model, requests_per_second, room, "best")
    middle = _at_rate(model, requests_per_second, room, "middle") if is_kept_up_with else None
    num_users = math.inf if middle is None else middle.num_users

    def find_speed() -> ServingSpeed:
        best = _at_rate(model, requests_per_second, room, "best") or model.steady(room, "best")
        return model.between(best, worst, room if middle is None else num_users)

    share = 1.0 if worst is not None else 1.0 - share_within(supply, requests_per_second)
    most_users = math.inf if worst is None else worst.num_users
    server_share = model.front_end.busy_share(requests_per_second, model.output_tokens)
    return LoadedReplica(num_users, most_users, middle, find_speed, supply, share, server_share)


def share_within(found: Range, bound: float) -> float:
    """The share of a range (on a logarithmic scale) that is at most ``bound``."""
    if bound >= found.high:
        return 1.0
    if bound < found.low or not found.is_bounded:
        return 0.0
    return math.log(bound / found.low) / math.log(found.high / found.low)


def _at_rate(model: SpeedModel, rate: float, room: int, end: End) -> SteadyState | None:
    """Requests that come whatever the replica does; None where ``room`` are not answered as fast as others arrive.

    One that comes finds as many others as there are on average, where one of n users finds n - 1: what it sees is what
    one of so many users sees whose other n - 1 send requests at ``rate``.
    """
    if not _keeps_up(model, rate, room, end):
        return None
    low, high = rate * model.steady(1, end).e2el_seconds, float(room)
    state = model.steady(1 + high, end)
    while high > _PRECISION * low:
        middle = (low * high) ** 0.5
        tried = model.steady(1 + middle, end)
        if middle / tried.e2el_seconds >= rate:
            high, state = middle, tried
        else:
            low = middle
    return replace(state, num_users=rate * state.e2el_seconds)


def _keeps_up(model: SpeedModel, rate: float, room: int, end: End) -> bool:
    return most_requests_per_second(model, room, end) >= rate


def most_requests_per_second(model: SpeedModel, room: int, end: End) -> float:
    """How many requests a replica answers with ``room`` of them in progress, where one that comes is beside these."""
    room = max(room, 1)
    whole, beside_one = model.steady(room, end), model.steady(1 + float(room), end)
    return min(whole.requests_per_second, room / beside_one.e2el_seconds)


def replica_load(
    workload: Workload, replicas: int, model: SpeedModel, room: int, *, may_wait: bool = True
) -> LoadedReplica:
    """The share of ``workload`` that falls on one of ``replicas``, which has ``room`` for so many at once.

    ``may_wait``: whether users who think may have more requests in progress than that.
    """
    if workload.requests_per_second is not None:
        return serve_rate(model, workload.requests_per_second / replicas, room)
    num_users, think = workload.users_of_one(replicas), workload.pattern.think_seconds
    if think:
        return serve_thinking(model, num_users, think, room if may_wait else math.inf)
    return serve_users(model, num_users, room)
