"""What a hand-over moves, and how long links take for it."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.estimate.vllm.groups import BlockPlan, PageGroup
from kvplan.estimate.vllm.pages import LayerPage
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.fleet.apart.links import Links
from kvplan.fleet.apart.moved import MovedKv
from kvplan.settings import ServingSettings

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
