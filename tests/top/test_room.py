"""How many more sequences fit: the server's free blocks over the blocks that the plan gives one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from metric_pages import LLAMACPP_PAGE, SGLANG_PAGE, TRTLLM_PAGE, vllm_page

from kvplan.catalog.models import resolve_model
from kvplan.metrics.limits import ServerLimits
from kvplan.metrics.page import read_page
from kvplan.metrics.reading import ServerReading
from kvplan.top.room import Room, known_model, room_for

NO_LIMITS = ServerLimits()


def reading_of(page: str) -> ServerReading:
    found = read_page(page)
    assert found is not None
    return found


def vllm_reading(used_blocks: int, running: float = 3.0) -> ServerReading:
    """A pool of 505 blocks of 16 tokens, one of which is vLLM's null block."""
    return reading_of(vllm_page(usage=used_blocks / 504, running=running))


@pytest.mark.parametrize(("used", "more"), [(0, 7), (56, 7), (57, 6), (440, 1), (441, 0), (504, 0)])
def test_a_sequence_fits_when_all_of_its_blocks_are_free(used: int, more: int) -> None:
    """1,024 tokens are 64 blocks; 504 can be had, so 7 fit, and 7 still do beside 56 used blocks."""
    room = room_for(1024, vllm_reading(used), NO_LIMITS, resolve_model("llama-3.1-8b"))
    assert room is not None
    assert (room.by_kv, room.capacity, room.blocks_per_sequence) == (more, 7, 64)
    assert room.basis == "plan of meta-llama/Llama-3.1-8B"


def test_windows_let_more_sequences_in_than_tokens_say() -> None:
    """gpt-oss: 12 full layers (512 blocks for 8,192 tokens) and 12 with a window of 128 (128 / 16 + 1 = 9 blocks)."""
    reading = vllm_reading(0)
    reading = replace(reading, cache=replace(reading.cache, num_blocks=5211, kv_cache_size_tokens=None))
    room = room_for(8192, reading, NO_LIMITS, resolve_model("gpt-oss-20b"))
    assert room is not None
    assert (room.blocks_per_sequence, room.capacity) == (521, 10)


def test_seats_limit_what_the_pool_has_room_for() -> None:
    room = room_for(1024, vllm_reading(0, running=254.0), ServerLimits(max_num_seqs=256), None)
    assert room is not None
    assert (room.by_kv, room.by_seats, room.sequences, room.is_limited_by_seats) == (7, 2, 2, True)
    full = room_for(1024, vllm_reading(0, running=300.0), ServerLimits(max_num_seqs=256), None)
    assert full is not None and full.sequences == 0


def test_an_unknown_model_is_counted_in_tokens_and_says_so() -> None:
    """The page tells 8,064 tokens; a quarter is used."""
    room = room_for(1000, vllm_reading(126), NO_LIMITS, None)
    assert room == Room(1000, by_kv=6, by_seats=None, capacity=8, blocks_per_sequence=None, basis="tokens")


def test_every_data_parallel_engine_has_room_of_its_own() -> None:
    """SGLang: two engines of 60,000 tokens, 0.5 and 0.9 used; a sequence does not span two."""
    room = room_for(9000, reading_of(SGLANG_PAGE), NO_LIMITS, None)
    assert room is not None
    assert room.capacity == 2 * (60_000 // 9008)
    assert room.by_kv == 2 * (18_000 // 9008)  # the mean is all that is known of both
    one = replace(vllm_reading(0), num_engines=2)
    one = replace(one, cache=replace(one.cache, num_blocks=2 * 505))
    assert room_for(4096, one, NO_LIMITS, resolve_model("llama-3.1-8b")).capacity == 2  # type: ignore[union-attr]


def test_kvplans_blocks_hold_every_layer_whatever_the_model() -> None:
    reading = replace(vllm_reading(0), engine="kvplan", kv_cache_usage=5 / 505)
    room = room_for(100, reading, NO_LIMITS, None)
    assert room is not None
    assert (room.blocks_per_sequence, room.by_kv, room.capacity, room.basis) == (7, 500 // 7, 505 // 7, "blocks")


def test_a_server_that_tells_no_pool_has_no_room_to_show() -> None:
    assert room_for(1024, reading_of(LLAMACPP_PAGE), NO_LIMITS, None) is None
    assert room_for(1024, reading_of(TRTLLM_PAGE), NO_LIMITS, None) is not None


def test_room_in_llama_cpp_is_its_free_slots() -> None:
    reading = replace(
        reading_of(LLAMACPP_PAGE), num_slots=4, slot_tokens=1024, kv_cache_used_tokens=320.0, num_running=3.0
    )
    room = room_for(1024, reading, ServerLimits(max_num_seqs=4), None)
    assert room is not None and (room.sequences, room.capacity, room.basis) == (1, 4, "slots")
    longer = room_for(1025, reading, NO_LIMITS, None)
    assert longer is not None and (longer.sequences, longer.capacity) == (0, 0), "no slot is so long"


def test_an_unknown_cache_dtype_is_not_planned_with() -> None:
    reading = vllm_reading(0)
    reading = replace(reading, cache=replace(reading.cache, cache_dtype="octave_k3v4"))
    room = room_for(1024, reading, NO_LIMITS, resolve_model("llama-3.1-8b"))
    assert room is not None and room.basis == "tokens"


def test_a_served_name_is_looked_up_without_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_hub(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("kvplan.catalog.hub.fetch_model", no_hub)
    assert known_model(("my-alias", "someone/unheard-of")) is None
    found = known_model(("my-alias", "meta-llama/Llama-3.1-8B"))
    assert found is not None and found.id == "meta-llama/Llama-3.1-8B"
