"""Bytes that a hand-over moves, by groups of layers."""

from __future__ import annotations

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.estimate.vllm.groups import BlockPlan, PageGroup
from kvplan.estimate.vllm.pages import LayerPage
from kvplan.estimate.vllm.prediction import predict_vllm
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
