"""Bytes that a hand-over moves, by groups of layers."""

from __future__ import annotations

from kvplan.estimate.vllm.groups import BlockPlan, KvGroup
from kvplan.estimate.vllm.pages import LayerPage
from kvplan.fleet.apart.moved import MovedKv

_FULL = KvGroup(LayerPage("full", 16, 1000), 10)
_WINDOW = KvGroup(LayerPage("sliding", 16, 1000, window_tokens=64), 50)
_STATE = KvGroup(LayerPage("state", 1, 7000), 30)


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
