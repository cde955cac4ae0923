"""Requests played on two pools of replicas: one reads prompts, the other decodes, and KV moves between them.

    sent -> line of a prefill replica -> read there -> line of a decode replica -> KV on its way -> decoded there
            (where the decode replica reserves first: its line comes before the prefill replica's)

Replicas are those of ``replicas``: a prefill replica is asked for one token, and a decode replica is given the KV.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from kvplan.estimate.speed.queueing.figures import Distribution
from kvplan.fleet.apart.lines import DecodeLine, PrefillLine, blocks_of
from kvplan.fleet.apart.links import Links
from kvplan.fleet.apart.moved import MovedKv, bytes_left
from kvplan.fleet.apart.rules import HandOver
from kvplan.fleet.replicas.replica import Replica
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.replicas.setup import ReplicaSetup
from kvplan.fleet.requests import FleetRequest, merged_runs
from kvplan.fleet.routers.interface import Router

_LOOK_EVERY: Final = 64
"""Requests that end between two questions whether it is hopeless."""


@dataclass(frozen=True)
class PoolSetup:
    """Replicas of one kind. link_bytes_per_second: of all GPUs of one replica together, in one direction."""

    setup: ReplicaSetup
    link_bytes_per_second: float


@dataclass(frozen=True)
class ApartSetup:
    """Both kinds of replicas, what they move, and the engine's rules for it."""

    prefill: PoolSetup
    decode: PoolSetup
    moved: MovedKv
    rules: HandOver


@dataclass(slots=True)
class ApartPlay:
    """seen: of requests that ended, by number. transfer_seconds: of each that moved KV; waits: for decode blocks."""

    seen: list[Seen] = field(default_factory=list)
    transfer_seconds: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    bytes_moved: float = 0.0
    num_preemptions: int = 0
    was_stopped: bool = False

    @property
    def transfers(self) -> Distribution | None:
        """None where nothing was moved."""
        return Distribution.of(self.transfer_seconds) if self.transfer_seconds else None


class _Event(NamedTuple):
    """At a moment: a request is sent, was read, or was decoded."""

    at: float
    order: int
    kind: str
    number: int


@dataclass(slots=True)
class _Flight:
    """Where a request is. read_at: when the prefill replica had read it; asked_at: when it came to the decode line."""

    request: FleetRequest
    sent: float
    prefill: int
    decode: int = -1
    asked_at: float = 0.0
    moving_at: float = 0.0
    arrived_at: float = 0.0
    of_prefill: Seen | None = None
    of_decode: Seen | None = None


class ApartFleet:
    """Replicas of both kinds behind a router each."""

    def __init__(self, setup: ApartSetup, num_prefill: int, num_decode: int, routers: tuple[Router, Router]) -> None:
        self._setup, self._rules = setup, setup.rules
        self._to_prefill, self._to_decode = routers
        self.prefill = [Replica(setup.prefill.setup, index) for index in range(num_prefill)]
        self.decode = [Replica(setup.decode.setup, index) for index in range(num_decode)]
        self._prefill_lines = [PrefillLine(each) for each in self.prefill]
        self._decode_lines = [DecodeLine(each) for each in self.decode]
        bandwidths: dict[Hashable, float] = {}
        bandwidths |= {("prefill", index): setup.prefill.link_bytes_per_second for index in range(num_prefill)}
        bandwidths |= {("decode", index): setup.decode.link_bytes_per_second for index in range(num_decode)}
        self._links = Links(bandwidths)
        self._events: list[_Event] = []
        self._order = 0
        self._flights: dict[int, _Flight] = {}
        self._play = ApartPlay()

    def play(self, requests: Sequence[FleetRequest], stop: Callable[[list[Seen]], bool] | None = None) -> ApartPlay:
        """Send ``requests`` and play until all have ended, or ``stop`` says that it is hopeless."""
        requests = merged_runs(requests)
        by_number = {each.number: each for each in requests}
        followers: dict[int, list[FleetRequest]] = {}
        for each in requests:
            if each.after is None:
                self._note(each.sent, "sent", each.number)
            else:
                followers.setdefault(each.after, []).append(each)
        found, looked = self._play, 0
        while len(found.seen) < len(requests):
            until = self._next()
            assert until < math.inf, "requests are in progress or to come"
            self._advance(until)
            for at, number in self._links.take_ended(until):
                self._arrive(number, at)
            while self._events and self._events[0].at <= until:
                event = heapq.heappop(self._events)
                if event.kind == "sent":
                    self._send(by_number[event.number], event.at)
                elif event.kind == "read":
                    self._was_read(event.number, event.at)
                else:
                    seen = self._end(event.number)
                    for each in followers.pop(event.number, ()):
                        self._note(seen.last + each.think_seconds, "sent", each.number)
            self._let_in(until)
            if stop is not None and len(found.seen) >= looked + _LOOK_EVERY:
                looked = len(found.seen)
                if stop(found.seen):
                    found.was_stopped = True
                    break
        found.seen.sort(key=lambda seen: seen.request.number)
        found.bytes_moved = self._links.bytes_moved
        found.num_preemptions = sum(seen.num_preemptions for seen in found.seen)
        return found

    def _next(self) -> float:
        moment = min(self._events[0].at if self._events else math.inf, self._links.next_end())
        for each in self.prefill:
            moment = min(moment, each.next_event())
        for each in self.decode:
            moment = min(moment, each.next_event())
        return moment

    def _note(self, at: float, kind: str, number: int) -> None:
        self._order += 1
        heapq.heappush(self._events, _Event(at, self._order, kind, number))

    def _advance(self, until: float) -> None:
        """Play all replicas up to ``until``, and note what ended there. A step under way may end later."""
        for each in self.prefill:
            each.advance(until)
            for seen in each.take_ended():
                self._flights[seen.request.number].of_prefill = seen
                self._note(seen.last + seen.in_stages, "read", seen.request.number)
        for each in self.decode:
            each.advance(until)
            for seen in each.take_ended():
                self._flights[seen.request.number].of_decode = seen
                self._note(seen.last, "decoded", seen.request.number)

    def _send(self, request: FleetRequest, at: float) -> None:
        chosen = self._to_prefill.choose(request, self.prefill)
        flight = self._flights[request.number] = _Flight(request, at, chosen)
        if self._rules.reserves_first:
            self._ask_for_blocks(flight, at)
        else:
            self._queue_for_reading(flight)

    def _queue_for_reading(self, flight: _Flight) -> None:
        layout = self._setup.prefill.setup.pool
        blocks = blocks_of(layout, flight.request.num_prompt_tokens)
        self._prefill_lines[flight.prefill].join(flight.request.number, blocks)

    def _ask_for_blocks(self, flight: _Flight, at: float) -> None:
        """Take a place in the line of a decode replica."""
        request = flight.request
        flight.decode = self._to_decode.choose(request, self.decode)
        flight.asked_at = at
        tokens = request.num_prompt_tokens + self._rules.reserved_tokens
        blocks = min(blocks_of(self._setup.decode.setup.pool, tokens), self._setup.decode.setup.pool.num_blocks)
        self._decode_lines[flight.decode].join(request.number, blocks)

    def _was_read(self, number: int, at: float) -> None:
        flight = self._flights[number]
        self._prefill_lines[flight.prefill].was_read(number)
        if self._rules.reserves_first:
            self._move(flight, at)
        else:
            self._ask_for_blocks(flight, at)

    def _let_in(self, at: float) -> None:
        """Let those go on for whom blocks are free: to be read, or to be moved."""
        for line in self._decode_lines:
            for number in line.let_in():
                flight = self._flights[number]
                self._play.waits.append(at - flight.asked_at)
                if self._rules.reserves_first:
                    self._queue_for_reading(flight)
                else:
                    self._move(flight, at)
        for index, before in enumerate(self._prefill_lines):
            for number in before.let_in():
                request = replace(self._flights[number].request, num_output_tokens=1, answer_key=None)
                self.prefill[index].deliver(request, at)

    def _move(self, flight: _Flight, at: float) -> None:
        setup, request, read = self._setup, flight.request, flight.of_prefill
        assert read is not None, "it was read"
        flight.moving_at = at
        if self._rules.sends_chunks:
            speed = min(setup.prefill.link_bytes_per_second, setup.decode.link_bytes_per_second)
            num_bytes = bytes_left(setup.prefill.setup, setup.moved, request, read.num_hit_tokens, speed)
        else:
            found = self.decode[flight.decode].match(request) if self._rules.looks_up else 0
            num_bytes = setup.moved.num_bytes(request.num_prompt_tokens, found)
        source, destination = ("prefill", flight.prefill), ("decode", flight.decode)
        self._links.start(at, request.number, source, destination, num_bytes)

    def _arrive(self, number: int, at: float) -> None:
        """All KV of a request is there: it decodes from now on."""
        flight = self._flights[number]
        flight.arrived_at = at
        self._play.transfer_seconds.append(at - flight.moving_at)
        self._prefill_lines[flight.prefill].was_moved(number)
        line, request = self._decode_lines[flight.decode], flight.request
        line.delivered(number)
        if self._rules.samples_first:
            line.replica.deliver(request, at, request.num_prompt_tokens)
        elif request.num_output_tokens > 1:
            prompt, answer = request.num_prompt_tokens + 1, request.num_output_tokens - 1
            going_on = replace(request, num_prompt_tokens=prompt, num_output_tokens=answer)
            line.replica.deliver(going_on, at, request.num_prompt_tokens)
        else:
            self._note(at, "decoded", number)

    def _end(self, number: int) -> Seen:
        flight = self._flights.pop(number)
        read, decoded = flight.of_prefill, flight.of_decode
        assert read is not None, "it was read"
        seen = Seen(flight.request, flight.decode, flight.sent, num_hit_tokens=read.num_hit_tokens)
        seen.first = decoded.first if decoded is not None and self._rules.samples_first else flight.arrived_at
        seen.last = flight.arrived_at if decoded is None else decoded.last
        seen.in_stages = decoded.in_stages if decoded is not None and self._rules.samples_first else 0.0
        seen.num_preemptions = read.num_preemptions + (0 if decoded is None else decoded.num_preemptions)
        self._play.seen.append(seen)
        return seen
