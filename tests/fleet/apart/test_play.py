"""Requests on two pools of replicas, worked out by hand: what a hand-over moves, and how long links take for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.vllm.groups import BlockPlan, PageGroup
from kvplan.estimate.vllm.pages import LayerPage
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.fleet.apart.links import Links
from kvplan.fleet.apart.moved import MovedKv
from kvplan.fleet.apart.play import ApartFleet, ApartPlay, ApartSetup, PoolSetup
from kvplan.fleet.apart.rules import SGLANG, VLLM, HandOver
from kvplan.fleet.replicas.setup import PoolLayout, ReplicaSetup
from kvplan.fleet.requests import FleetRequest, TokenRun
from kvplan.fleet.routers.in_turn import RoundRobin
from kvplan.settings import ServingSettings

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


_FULL = PageGroup(LayerPage("full", 16, 1000), 10)
_WINDOW = PageGroup(LayerPage("sliding", 16, 1000, window_tokens=64), 50)
_STATE = PageGroup(LayerPage("state", 1, 7000), 30)


def test_full_attention_moves_all_blocks_that_the_receiver_lacks() -> None:
    moved = MovedKv(BlockPlan((_FULL,), 10_000), num_ranks=4)
    assert moved.num_bytes(100) == 4 * 7 * 10 * 1000
    assert moved.num_bytes(100, found_tokens=96) == 4 * 1 * 10 * 1000
    assert moved.num_bytes(96, found_tokens=96) == 0


def test_windows_move_their_tail_and_states_once() -> None:
    moved = MovedKv(BlockPlan((_FULL, _WINDOW, _STATE), 60_000))
    of_full, of_window, of_state = 10 * 1000, 50 * 1000, 30 * 7000
    assert moved.num_bytes(32) == 2 * of_full + 2 * of_window + of_state
    assert moved.num_bytes(1600) == 100 * of_full + 5 * of_window + of_state


def test_a_chunk_at_a_time_is_as_much_as_all_at_once() -> None:
    moved = MovedKv(BlockPlan((_FULL, _WINDOW, _STATE), 60_000))
    parts = [moved.num_bytes(end) - (moved.num_bytes(end - 40) if end > 40 else 0) for end in range(40, 401, 40)]
    assert sum(parts) == moved.num_bytes(400)


def _moved(model: str, num_ranks: int) -> MovedKv:
    settings = ServingSettings(tensor_parallel_size=num_ranks, max_model_len=8192)
    return MovedKv(predict_vllm(resolve_model(model), find_gpu("h200"), settings).rank.blocks, num_ranks)


def test_ranks_beyond_the_kv_heads_receive_the_same_heads() -> None:
    """Qwen3-30B-A3B: 48 layers, 4 KV heads of 128 elements, 2 B each, keys and values."""
    per_token = 48 * 4 * 128 * 2 * 2
    sizes = [_moved("qwen3-30b-a3b", ranks).num_bytes(1600) for ranks in (1, 2, 4, 8)]
    assert sizes == [1600 * per_token] * 3 + [2 * 1600 * per_token]


def test_of_a_hybrid_model_only_full_attention_grows_with_the_prompt() -> None:
    """Gemma 3 27B: 10 full and 52 sliding layers with 1,024 tokens, 16 KV heads of 128 elements, 2 B each."""
    moved, layer = _moved("gemma-3-27b", 2), 16 * 128 * 2 * 2
    assert moved.num_bytes(6400) - moved.num_bytes(3200) == 3200 * 10 * layer
    assert moved.num_bytes(6400) == 6400 * 10 * layer + (1024 + 16) * 52 * layer


def test_one_transfer_has_the_slower_of_its_two_ends() -> None:
    links = Links({"p": 100.0, "d": 50.0})
    links.start(1.0, 7, "p", "d", 200)
    assert links.next_end() == 5.0
    assert links.take_ended(5.0) == [(5.0, 7)]
    assert links.next_end() == float("inf")


def test_two_transfers_share_their_sender_and_the_second_has_it_alone_afterwards() -> None:
    links = Links({"p": 100.0, "d0": 100.0, "d1": 100.0})
    links.start(0.0, 1, "p", "d0", 100)
    links.start(0.5, 2, "p", "d1", 100)
    # 50 bytes of the first are gone at 0.5; both go at 50 until 1.5, when the second has 50 bytes left, alone.
    assert links.take_ended(10.0) == [(pytest.approx(1.5), 1), (pytest.approx(2.0), 2)]


def test_what_one_end_cannot_take_is_left_to_others() -> None:
    links = Links({"p": 100.0, "slow": 20.0, "fast": 100.0})
    links.start(0.0, 1, "p", "slow", 20)
    links.start(0.0, 2, "p", "fast", 80)
    assert [number for _, number in links.take_ended(1.0)] == [1, 2]


def test_receivers_share_too() -> None:
    links = Links({"p0": 100.0, "p1": 100.0, "d": 100.0})
    links.start(0.0, 1, "p0", "d", 100)
    links.start(0.0, 2, "p1", "d", 100)
    assert [at for at, _ in links.take_ended(9.0)] == [pytest.approx(2.0), pytest.approx(2.0)]


@pytest.mark.parametrize("bandwidth", [float("inf"), 1e30])
def test_an_endless_link_takes_no_time(bandwidth: float) -> None:
    links = Links({"p": bandwidth, "d": bandwidth})
    links.start(3.0, 1, "p", "d", 10**12)
    links.start(3.0, 2, "p", "d", 0)
    assert links.take_ended(3.0) == [(3.0, 1), (3.0, 2)]


def test_no_byte_is_lost() -> None:
    links = Links({("p", 0): 3.0, ("p", 1): 7.0, ("d", 0): 5.0, ("d", 1): 11.0})
    for number in range(40):
        links.start(number * 0.37, number, ("p", number % 2), ("d", number // 3 % 2), 1 + number % 7)
    ended = links.take_ended(1e6)
    assert sorted(number for _, number in ended) == list(range(40))
    assert [at for at, _ in ended] == sorted(at for at, _ in ended)
    total = sum(1 + number % 7 for number in range(40))
    assert links.bytes_moved == total
    assert ended[-1].at >= total / 10.0  # both senders together
