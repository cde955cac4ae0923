"""What the sources compare paging and continuous batching with, as modes of the same scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from engine_answers import answer, random_prompts, shrink_pool, small_llm
from scheduler_harness import SchedulerHarness
from small_models import Checkpoint, greedy

from kvplan_engine import EngineError, SamplingParams


def harness(**settings: Any) -> SchedulerHarness:
    defaults: dict[str, Any] = {
        "num_blocks": 16,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 32,
    }
    return SchedulerHarness(**(defaults | settings))


def test_static_batches_start_when_the_one_before_has_finished_entirely() -> None:
    h = harness(scheduling="static", num_blocks=64)
    for number in range(10):
        h.add([1] * 3, max_tokens=1 + number % 4)
    batches: list[set[str]] = []
    while h.scheduler.has_unfinished:
        names = {item.sequence.request.request_id for item in h.step().scheduled}
        if not batches or not names <= batches[-1]:
            assert not batches or not names & batches[-1], "a batch was refilled"
            batches.append(names)
    assert [len(batch) for batch in batches] == [4, 4, 2]


def test_a_static_batch_forms_over_several_steps_when_its_prompts_exceed_the_budget() -> None:
    h = harness(scheduling="static", num_blocks=64)
    for _ in range(6):
        h.add([1] * 10, max_tokens=20)
    for _ in range(8):
        h.step()
    assert len(h.scheduler.running) == 4
    assert len(h.scheduler.waiting) == 2


def test_a_static_batch_is_closed_when_nobody_else_waits() -> None:
    h = harness(scheduling="static")
    h.add([1] * 3, max_tokens=4)
    h.step()
    h.add([1] * 3, max_tokens=4)
    for _ in range(3):
        h.step()
        assert len(h.scheduler.waiting) == 1
    h.step()
    assert not h.scheduler.waiting


def test_continuous_batching_fills_a_seat_at_once() -> None:
    h = harness(num_blocks=64)
    for number in range(5):
        h.add([1] * 3, max_tokens=1 + number)
    h.step()
    assert len(h.scheduler.waiting) == 1
    h.step()
    assert not h.scheduler.waiting


def test_contiguous_reservation_holds_the_longest_sequence_for_each() -> None:
    h = harness(kv_reservation="contiguous", prefix_caching=False)
    for _ in range(3):
        h.add([1] * 3, max_tokens=6)
    h.step()
    # 16 blocks, 8 for each: two run, though three would fit by what they store
    assert [len(sequence.table) for sequence in h.scheduler.running] == [8, 8]
    assert h.scheduler.num_blocked_admissions == 1
    while h.scheduler.has_unfinished:
        h.step()
        assert all(len(sequence.table) == 8 for sequence in h.scheduler.running)
    assert h.scheduler.num_preemptions == 0
    assert h.pool.num_free_blocks == 16


def test_contiguous_reservation_is_for_one_sequence_per_request() -> None:
    h = harness(kv_reservation="contiguous", prefix_caching=False)
    with pytest.raises(EngineError, match="share blocks"):
        h.add([1] * 3, n=2)
    with pytest.raises(EngineError, match="share blocks"):
        h.add_beams([1] * 3, beam_width=1)


@pytest.mark.parametrize("scheduling", ["continuous", "static"])
@pytest.mark.parametrize("reservation", ["paged", "contiguous"])
def test_the_tokens_are_the_same_in_every_mode(
    checkpoints: dict[str, Checkpoint], scheduling: str, reservation: str
) -> None:
    checkpoint = checkpoints["llama-tied"]
    prompts = random_prompts(30, 5, 40, 61, 12, seed=4)
    limits = {"max_num_batched_tokens": 48, "max_num_seqs": 3, "max_model_len": 80, "block_size": 8}
    llm = small_llm(checkpoint.path, scheduling=scheduling, kv_reservation=reservation, **limits)
    shrink_pool(llm, num_tokens=176)
    assert answer(llm, prompts, 16) == greedy(checkpoint.model, prompts, 16)
    stats = llm.get_stats()
    assert stats["num_free_blocks"] == stats["num_blocks"]
    assert (stats["num_cached_blocks"] > 0) == (reservation == "paged")


def test_stats_tell_used_tokens_from_held_slots(checkpoints: dict[str, Checkpoint]) -> None:
    fragmentation = {}
    for reservation in ("paged", "contiguous"):
        llm = small_llm(checkpoints["gpt2"].path, max_model_len=128, block_size=16, kv_reservation=reservation)
        llm.engine.add_request("r", list(range(1, 21)), SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))
        llm.engine.step()
        stats = llm.engine.stats
        assert stats.num_used_tokens == stats.num_running_tokens == 20
        held = stats.num_used_blocks * 16
        assert stats.internal_fragmentation_bytes * 16 == (held - 20) * llm.engine.memory.block_bytes
        fragmentation[reservation] = held
    assert fragmentation == {"paged": 32, "contiguous": 128}


def test_the_longest_stall_spans_the_steps_in_which_a_sequence_got_no_token(
    checkpoints: dict[str, Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    import kvplan_engine.execution.loop.step_loop as overlap

    llm = small_llm(checkpoints["gpt2"].path, max_num_batched_tokens=2, max_num_seqs=4, max_model_len=64)
    clock = iter(range(10_000))
    monkeypatch.setattr(overlap.time, "perf_counter", lambda: float(next(clock)))
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    llm.engine.add_request("a", [1, 2], params)
    llm.engine.step()
    assert llm.engine.stats.longest_stall_seconds == 0
    llm.engine.step()
    usual = llm.engine.stats.longest_stall_seconds
    assert usual > 0
    for name in "bcd":
        llm.engine.add_request(name, [3], params)
    stalls = []
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
        stalls.append(llm.engine.stats.longest_stall_seconds)
    # four sequences share two tokens a step
    assert max(stalls) == llm.get_stats()["longest_stall_seconds"] > 1.5 * usual
