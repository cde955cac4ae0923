"""Replicas in time: against the play of ``queueing`` where there is nothing to share, and what routers see of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from kvplan.errors import KvplanError
from kvplan.estimate.speed.queueing.arrivals import Arrivals
from kvplan.estimate.speed.queueing.front_end import FrontEnd
from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad, TracedLoad
from kvplan.estimate.speed.queueing.play import InstancePlay
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.fleet.replicas.fleet import Fleet, FleetPlay
from kvplan.fleet.replicas.replica import Replica
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.replicas.setup import CacheGroup, PoolLayout, ReplicaSetup
from kvplan.fleet.requests import FleetRequest, TokenRun
from kvplan.fleet.routers.in_turn import LeastLoaded, RoundRobin
from kvplan.fleet.routers.interface import ReplicaView


class Clock:
    """20 ms a step, 50 us for each token of it and 10 ns for each token that is read of the cache."""

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        return 0.02 + 5e-5 * num_tokens + 1e-8 * num_kv_tokens

    def seconds_beside(
        self,
        num_met: float,
        num_tokens: float,
        num_sequences: float,
        num_sampled: float,
        num_kv_tokens: float,
        num_pairs: float,
    ) -> float:
        return 0.02 + 2e-5 * num_met + 3e-5 * num_tokens + 1e-8 * num_kv_tokens


LAYOUT = PoolLayout.full_attention(16, 4000)


def setup(layout: PoolLayout = LAYOUT, **changes: object) -> ReplicaSetup:
    rules = SchedulingRules(32, 512, layout.num_blocks * 16)
    return ReplicaSetup(SchedulingRules(**{**_fields(rules), **changes}), Clock(), layout)  # type: ignore[arg-type]


def _fields(rules: SchedulingRules) -> dict[str, object]:
    return {name: getattr(rules, name) for name in SchedulingRules.__dataclass_fields__}


def unlike(count: int, gap: float, prompt: int = 700, answer: int = 60) -> list[FleetRequest]:
    """Prompts that have nothing in common."""
    return [
        FleetRequest(number, number * gap, prompt + 37 * (number % 7), answer + 11 * (number % 5))
        for number in range(count)
    ]


def times_in_a_play_of_tokens(requests: Sequence[FleetRequest], rules: SchedulingRules) -> list[tuple[float, float]]:
    """When requests get their first and their last token, as ``queueing`` plays them."""
    pairs = tuple((each.num_prompt_tokens, each.num_output_tokens) for each in requests)
    load = PlayedLoad(
        LengthDistribution(1), LengthDistribution(1), len(requests), 1.0, trace=TracedLoad("a trace", pairs)
    )
    load.__dict__["lengths"] = list(pairs)  # in the trace's order and at its times, of which it has neither
    load.__dict__["arrivals"] = [each.sent for each in requests]
    arrivals = Arrivals(load, rules.front_end)
    InstancePlay(load, rules, Clock(), arrivals).run()
    return [(each.first, each.last) for each in arrivals.requests]


@pytest.mark.parametrize("gap", [2.0, 0.3, 0.12, 0.01])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"schedules_ahead": True, "front_end": FrontEnd(0.002, 0.003, 5e-5)},
        {"prompts_first": True},
        {"num_groups": 2},
    ],
)
def test_prompts_that_share_nothing_see_what_a_play_of_tokens_says(changes: dict[str, object], gap: float) -> None:
    requests, own = unlike(80, gap), setup(**changes)
    expected = times_in_a_play_of_tokens(requests, own.rules)
    seen = Fleet(own, 1, RoundRobin()).play(requests).seen
    assert [each.first for each in seen] == pytest.approx([first for first, _ in expected], rel=1e-9)
    assert [each.last for each in seen] == pytest.approx([last for _, last in expected], rel=1e-9)


def _times(play: FleetPlay) -> list[tuple[float, float]]:
    return [(each.first, each.last) for each in play.seen]


def test_a_blind_router_changes_nothing_of_a_replica() -> None:
    requests = unlike(90, 0.1)
    together = Fleet(setup(), 3, RoundRobin()).play(requests)
    for index in range(3):
        alone = Fleet(setup(), 1, RoundRobin()).play(requests[index::3])
        assert _times(alone) == _times(together)[index::3]
    assert {each.replica for each in together.seen} == {0, 1, 2}


def test_looking_at_a_replica_changes_nothing() -> None:
    class Curious:
        is_blind = False

        def choose(self, request: FleetRequest, replicas: Sequence[ReplicaView]) -> int:
            assert all(0 <= each.kv_usage <= 1 and each.match(request) == 0 for each in replicas)
            return request.number % len(replicas)

    requests = unlike(90, 0.1)
    assert _times(Fleet(setup(), 3, Curious()).play(requests)) == _times(Fleet(setup(), 3, RoundRobin()).play(requests))


def test_the_least_loaded_replica_gets_the_next_request() -> None:
    requests = [FleetRequest(0, 0.0, 500, 400), FleetRequest(1, 0.0, 500, 4), *unlike(12, 2.0, 300, 20)[2:]]
    play = Fleet(setup(), 2, LeastLoaded()).play(requests)
    assert [each.replica for each in play.seen[:2]] == [0, 1]
    assert {each.replica for each in play.seen[2:4]} == {1}, "the other one still answers its first request"


def test_the_next_turn_is_sent_when_the_answer_was_read() -> None:
    first = FleetRequest(0, 1.0, 100, 20, (TokenRun(1, 100),), answer_key=1)
    second = FleetRequest(1, 1.0, 160, 20, (TokenRun(1, 160),), after=0, think_seconds=3.0, answer_key=1)
    play = Fleet(setup(), 1, RoundRobin()).play([first, second])
    assert play.seen[1].sent == play.seen[0].last + 3.0
    assert play.seen[1].num_hit_tokens == 119 // 16 * 16, "the answer was kept too, but for its last token"


def test_kv_that_comes_from_elsewhere_takes_blocks_and_no_time() -> None:
    replica = Replica(setup())
    replica.deliver(FleetRequest(0, 0.0, 1600, 2), 0.0, computed_tokens=1600)
    replica.advance(0.01)
    assert replica.kv_usage == 100 / 4000
    replica.advance(10.0)
    (seen,) = replica.take_ended()
    assert seen.first == pytest.approx(0.02 + 5e-5 + 1e-8 * 1600)
    assert replica.kv_usage == 0.0 and seen.num_hit_tokens == 0


def test_replicas_come_and_go() -> None:
    fleet = Fleet(setup(), 1, RoundRobin(), sample_seconds=1.0)
    added: list[float] = []

    def look(owner: Fleet, sample: object) -> None:
        if not added:
            added.append(5.0)
            owner.add(setup(), 5.0)
        elif fleet.replicas[0].now >= 10 and len(owner.serving(20.0)) == 2:
            owner.drain(0)

    play = fleet.play(unlike(60, 0.3), on_sample=look)
    assert {each.replica for each in play.seen if each.sent < 5.0} == {0}
    assert {each.replica for each in play.seen if 5.0 <= each.sent < 10.0} == {0, 1}
    assert {each.replica for each in play.seen if each.sent > 11.0} == {1}
    assert len(play.seen) == 60


def test_a_hopeless_play_stops() -> None:
    asked: list[int] = []

    def stop(seen: list[Seen]) -> bool:
        asked.append(len(seen))
        return len(seen) >= 10

    play = Fleet(setup(), 1, RoundRobin(), sample_seconds=1.0).play(unlike(60, 0.3), stop=stop)
    assert play.was_stopped and 10 <= len(play.seen) < 60 and asked == sorted(asked)


def test_a_request_that_no_pool_holds_is_refused() -> None:
    with pytest.raises(KvplanError, match="does not fit the KV cache"):
        Fleet(setup(PoolLayout.full_attention(16, 10)), 1, RoundRobin()).play(unlike(1, 1.0))


def test_a_window_makes_room_for_more() -> None:
    whole = PoolLayout((CacheGroup("full", 16, None, 2),), 300)
    windowed = PoolLayout((CacheGroup("full", 16), CacheGroup("sliding", 16, 128)), 300)
    requests = unlike(40, 0.02)
    late = [Fleet(setup(layout), 1, RoundRobin()).play(requests).seen[-1].last for layout in (whole, windowed)]
    assert late[1] < 0.8 * late[0]


def test_nothing_ends_before_the_next_event() -> None:
    replica = Replica(setup())
    assert replica.next_event() == math.inf
    replica.deliver(FleetRequest(0, 0.0, 100, 50), 0.0)
    ended: list[Seen] = []
    while not ended:
        event = replica.next_event()
        replica.advance(math.nextafter(event, 0.0))
        assert not replica.take_ended()
        replica.advance(event)
        ended = replica.take_ended()
    assert ended[0].last <= event
