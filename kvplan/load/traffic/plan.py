"""The requests of one run: which, how long, when, and who sends them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from kvplan.load.traffic.arrivals import UNLIMITED, Rate, arrival_times, arrivals_text
from kvplan.units import plural
from kvplan.workload.requests import RequestSpec, WorkloadSpec, generate_requests

# Requests of a run that ends by the clock: their lengths repeat after so many, their texts do not.
_CYCLE: Final = 4096
# A run by the clock sends no more than its mean rate lets it, with room for chance.
_SPARE_ARRIVALS: Final = 1.2


@dataclass(frozen=True, slots=True)
class Share:
    """Every ``count``-th request and user, from ``number`` on: the part of one of ``count`` clients."""

    number: int = 0
    count: int = 1

    def holds(self, request: RequestSpec) -> bool:
        return request.index % self.count == self.number


WHOLE: Final = Share()


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """One run's traffic.

    workload: lengths, number and file of the requests; its own rate is not used. users: a closed loop of so many, each
    sending its next request ``think_seconds`` (exponentially distributed, in the mean) after its last answer; None for
    arrivals by ``rate``. max_in_flight: no more at once. duration_seconds: nothing is sent after it, None to send
    ``workload.num_prompts``. num_warmups: the first ones, which are not measured. has_times: the workload's file says
    when its requests come; a rate rescales that. share: which part of it a client sends. drawn: the requests
    themselves with their arrivals, where they were drawn before; () to draw them from the workload.
    """

    workload: WorkloadSpec
    rate: Rate = UNLIMITED
    burstiness: float = 1.0
    users: int | None = None
    think_seconds: float = 0.0
    max_in_flight: int | None = None
    duration_seconds: float | None = None
    num_warmups: int = 0
    has_times: bool = False
    share: Share = WHOLE
    drawn: tuple[RequestSpec, ...] = ()

    def shares(self, num_clients: int) -> list[TrafficPlan]:
        """The plan dealt out to so many clients, or to as many as there are users or seats in flight.

        Together they send the same requests as one client. In an open loop at the same moments, in a closed one each
        client's next request waits for an answer of its own.
        """
        most = self.users or self.max_in_flight or num_clients
        count = min(num_clients, most)
        return [replace(self, share=Share(number, count)) for number in range(count)]

    @property
    def own_users(self) -> range:
        """The numbers of the users of this share."""
        return range(self.share.number, self.users or 0, self.share.count)

    @property
    def own_in_flight(self) -> int | None:
        """How many of this share may be in flight at once, at least one."""
        return (
            None if self.max_in_flight is None else len(range(self.share.number, self.max_in_flight, self.share.count))
        )

    @property
    def is_open(self) -> bool:
        """Whether requests come when they come, whatever the server does: latency then counts from the schedule."""
        return self.users is None and (not self.rate.is_all_at_once or self.has_times)

    @property
    def follows_trace(self) -> bool:
        """At the file's own times, or these at another mean rate."""
        return self.users is None and self.has_times and not self.rate.is_ramp

    def requests(self) -> Iterator[RequestSpec]:
        """The share's requests in order of arrival; drawn at once, without an end where only the clock ends the run."""
        if self.drawn:
            return filter(self.share.holds, iter(self.drawn))
        rate = self.rate.first if self.follows_trace else math.inf
        drawn = generate_requests(replace(self.workload, num_prompts=self._num_drawn, request_rate=rate))
        if self.follows_trace:
            timed = list(drawn)
        else:
            count = self._num_drawn if self.is_open and self.duration_seconds is not None else len(drawn)
            times = arrival_times(self.rate, self.burstiness, count, self.workload.seed, self.duration_seconds)
            lengths = islice(_repeated(list(drawn)), count)  # a file may hold fewer
            timed = [replace(spec, arrival_seconds=time) for spec, time in zip(lengths, times, strict=True)]
        endless = self.duration_seconds is not None and not self.is_open
        return filter(self.share.holds, _repeated(timed) if endless else iter(timed))

    @property
    def _num_drawn(self) -> int:
        if self.duration_seconds is None:
            return self.workload.num_prompts + self.num_warmups
        if self.is_open and not self.follows_trace:
            return math.ceil(self.duration_seconds * self.rate.mean * _SPARE_ARRIVALS) + self.num_warmups + 1
        return self.workload.num_prompts if self.workload.file else _CYCLE

    def as_text(self, arrivals: str | None = None) -> str:
        """One line: how many requests or how long, of which lengths, how they arrive (or ``arrivals`` instead)."""
        workload = self.workload
        amount = (
            plural(workload.num_prompts, "request")
            if self.duration_seconds is None
            else f"{self.duration_seconds:g} s of requests"
        )
        warmups = f", after {plural(self.num_warmups, 'warm-up request')}" if self.num_warmups else ""
        return f"{amount}, {workload.lengths_as_text()}, {arrivals or self.arrivals_text}{warmups}"

    @property
    def arrivals_text(self) -> str:
        """``8 users, thinking 2 s``, ``4 requests/s (Poisson), at most 16 in flight``."""
        if self.users is not None:
            pause = f", thinking {self.think_seconds:g} s" if self.think_seconds else ""
            return f"{plural(self.users, 'user')}{pause}"
        arrivals = arrivals_text(self.rate, self.burstiness)
        if self.follows_trace:
            rescaled = "" if self.rate.is_all_at_once else f", at {self.rate.first:g} requests/s"
            if self.workload.part.speed != 1:
                rescaled = f" at {self.workload.part.speed:g} times its speed"
            arrivals = f"arriving as in the file{rescaled}"
        return arrivals if self.max_in_flight is None else f"{arrivals}, at most {self.max_in_flight} in flight"


def _repeated(requests: list[RequestSpec]) -> Iterator[RequestSpec]:
    """The same lengths over and over; an index of its own for each, and so a text of its own."""
    while True:
        yield from requests
        requests = [replace(spec, index=spec.index + len(requests)) for spec in requests]
