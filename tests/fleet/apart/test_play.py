"""Requests on two pools of replicas, worked out by hand with a clock of one second a step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.vllm.groups import BlockPlan, PageGroup
from kvplan.estimate.vllm.pages import LayerPage
from kvplan.fleet.apart.moved import MovedKv
from kvplan.fleet.apart.play import ApartFleet, ApartPlay, ApartSetup, PoolSetup
from kvplan.fleet.apart.rules import SGLANG, VLLM, HandOver
from kvplan.fleet.replicas.setup import PoolLayout, ReplicaSetup
from kvplan.fleet.requests import FleetRequest, TokenRun
from kvplan.fleet.routers.in_turn import RoundRobin

_BLOCK = 16
_PLAN = BlockPlan((PageGroup(LayerPage("full", _BLOCK, 16), 1),), 16)
"""One byte a token."""
_ENDLESS = 1e30


@dataclass(frozen=True)
class _PerStep:
    """So long a step, whatever is in it, and so long for each prompt token beyond one for each sequence."""

    step: float = 1.0
    token: float = 0.0

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        return self.step + self.token * (num_tokens - num_sequences)


def _setup(
    rules: HandOver = VLLM,
    link: float = _ENDLESS,
    clock: _PerStep = _PerStep(),
    num_blocks: int = 1000,
    budget: int = 8192,
) -> ApartSetup:
    scheduling = SchedulingRules(64, budget, 16.0 * num_blocks)
    prefill = ReplicaSetup(scheduling, clock, PoolLayout.full_attention(_BLOCK, 1000))
    decode = ReplicaSetup(scheduling, clock, PoolLayout.full_attention(_BLOCK, num_blocks))
    return ApartSetup(PoolSetup(prefill, link), PoolSetup(decode, link), MovedKv(_PLAN), rules)


def _play(setup: ApartSetup, requests: list[FleetRequest], prefill: int = 1, decode: int = 1) -> ApartPlay:
    return ApartFleet(setup, prefill, decode, (RoundRobin(), RoundRobin())).play(requests)


def _request(number: int, sent: float = 0.0, prompt: int = 160, answer: int = 5) -> FleetRequest:
    return FleetRequest(number, sent, prompt, answer)


def test_without_queues_and_with_an_endless_link_a_request_sees_the_sum_of_its_parts() -> None:
    seen = _play(_setup(), [_request(0, sent=2.0)]).seen[0]
    # A step to read the prompt; the decode replica computes the last token again, and four tokens follow.
    assert (seen.first, seen.last) == (2 + 1 + 1, pytest.approx(2 + 1 + 5))


def test_sglang_sends_the_first_token_with_the_kv() -> None:
    seen = _play(_setup(SGLANG), [_request(0)]).seen[0]
    assert (seen.first, seen.last) == (1, pytest.approx(1 + 4))


@pytest.mark.parametrize("rules", [VLLM, SGLANG])
def test_an_answer_of_one_token_ends_too(rules: HandOver) -> None:
    seen = _play(_setup(rules), [_request(0, answer=1)]).seen[0]
    assert seen.last == seen.first == (2 if rules is VLLM else 1)


def test_kv_takes_its_bytes_over_the_link() -> None:
    play = _play(_setup(link=80.0), [_request(0)])
    assert play.transfer_seconds == [pytest.approx(160 / 80)]
    assert play.seen[0].first == pytest.approx(1 + 2 + 1)
    assert play.bytes_moved == 160


def test_two_transfers_share_the_sender() -> None:
    """Both prompts are read in one step, and two decode replicas receive at once."""
    play = _play(_setup(link=80.0), [_request(0), _request(1)], decode=2)
    assert play.transfer_seconds == [pytest.approx(4.0)] * 2
    apart = _play(_setup(link=80.0), [_request(0), _request(1)], prefill=2, decode=2)
    assert apart.transfer_seconds == [pytest.approx(2.0)] * 2


def test_what_the_decode_replica_has_in_its_cache_is_not_moved() -> None:
    runs = (TokenRun(1, 160),)
    first, second = (replace(_request(number, sent=20.0 * number), runs=runs) for number in (0, 1))
    play = _play(_setup(), [first, second])
    assert play.bytes_moved == 160 + 16  # all but the last token can be found: 9 of 10 blocks
    assert play.seen[1].num_hit_tokens == 144


def test_decode_blocks_are_waited_for_before_anything_moves() -> None:
    """Of 16 blocks the first request has 11; the second comes in when that has ended."""
    requests = [_request(0), _request(1, sent=0.5)]
    play = _play(_setup(num_blocks=16), requests)
    first, second = play.seen
    assert first.last == pytest.approx(6.0)
    assert second.first == pytest.approx(first.last + 1)
    assert play.waits[0] == 0
    assert play.waits[1] == pytest.approx(first.last - 2)


def test_sglang_reads_no_prompt_that_has_no_room_where_it_decodes() -> None:
    requests = [_request(0), _request(1, sent=0.5)]
    play = _play(_setup(SGLANG, num_blocks=16), requests)
    first, second = play.seen
    assert second.first == pytest.approx(first.last + 1)  # its one step to read


def test_chunks_are_sent_while_the_next_ones_are_read() -> None:
    """Four chunks of 40 tokens at one second each: a link of 40 bytes/s has one chunk left at the end."""
    request = _request(0, prompt=160)
    chunked = _play(_setup(SGLANG, link=40.0, budget=40), [request])
    whole = _play(_setup(VLLM, link=40.0, budget=40), [request])
    assert whole.transfer_seconds == [pytest.approx(4.0)]
    # Pages of 16: 48 tokens' blocks after the first chunk, then 32, 48 and 32.
    assert chunked.transfer_seconds == [pytest.approx(1.0, abs=0.25)]


@pytest.mark.parametrize("rules", [VLLM, SGLANG])
def test_every_request_ends_once(rules: HandOver) -> None:
    requests = [_request(number, 0.3 * number, 16 + 37 * number % 400, 1 + number % 9) for number in range(60)]
    play = _play(_setup(rules, link=500.0, num_blocks=60, clock=_PerStep(0.05, 0.002)), requests, 2, 3)
    assert [each.request.number for each in play.seen] == list(range(60))
    assert all(each.sent < each.first <= each.last for each in play.seen)
    assert len(play.transfer_seconds) == len(play.waits) == 60


def test_a_turn_waits_for_the_answer_before_it() -> None:
    requests = [_request(0), replace(_request(1), after=0, think_seconds=3.0)]
    first, second = _play(_setup(), requests).seen
    assert second.sent == pytest.approx(first.last + 3)


def test_a_play_is_stopped_where_it_is_hopeless() -> None:
    requests = [_request(number, 0.1 * number) for number in range(300)]
    fleet = ApartFleet(_setup(), 1, 1, (RoundRobin(), RoundRobin()))
    play = fleet.play(requests, stop=lambda seen: len(seen) > 100)
    assert play.was_stopped
    assert 100 < len(play.seen) < 300
