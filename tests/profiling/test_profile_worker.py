"""Inside a profile's worker: what is noted of steps that run ahead, and the allocator's history on a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_profile import TINY_CONFIG

from kvplan.profiling.worker.recording import StepRecorder, allocations_recorded
from kvplan.sweeps.worker.load_generator import LoadGenerator, TimedRequest
from kvplan_engine import Engine, EngineConfig, SamplingParams


def record(**settings: Any) -> StepRecorder:
    """Three requests of 40 prompt tokens and 6 others, at most 32 tokens a step."""
    config = EngineConfig(
        model=TINY_CONFIG,
        device="cpu",
        dtype="float32",
        load_format="dummy",
        device_memory=200 * 1024**2,
        max_num_batched_tokens=32,
        max_num_seqs=4,
        max_model_len=64,
        **settings,
    )
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    with Engine(config) as engine:
        recorder = StepRecorder(engine, lambda: 7)
        engine.observe_steps(recorder)
        requests = [TimedRequest(f"r{index}", 0.0, [index] * 40, params, 6) for index in range(3)]
        LoadGenerator(engine, requests, max_concurrency=None, on_step=recorder.see_step).run()
    return recorder


@pytest.mark.parametrize("ahead", [False, True])
def test_every_token_is_noted_once_whether_or_not_steps_run_ahead(ahead: bool) -> None:
    recorder = record(async_scheduling=ahead)
    columns = recorder.columns
    assert sum(columns["prefill_tokens"]) == 3 * 40
    assert sum(columns["new_tokens"]) == 3 * 6
    # A step that runs ahead computes one token more for a sequence that turns out to have ended.
    assert 3 * 5 <= sum(columns["decode_tokens"]) <= 3 * 6
    assert columns["process_bytes"][0] == 7
    lengths = {len(column) for column in (*columns.values(), *recorder.phase_seconds.values())}  # type: ignore[arg-type]
    assert len(lengths) == 1


def test_steps_are_noted_with_what_they_computed_whether_or_not_they_run_ahead() -> None:
    """A step's counts belong to its own tokens and time, not to those of the step before; none is lost."""
    alone, ahead = record(async_scheduling=False).columns, record(async_scheduling=True).columns
    assert alone["prefill_tokens"][0] == 32
    for name in ("prefill_tokens", "prefill_seqs", "decode_tokens", "new_tokens"):
        assert ahead[name] == alone[name], name
    ended = 0.0
    for began, seconds in zip(ahead["began_seconds"], ahead["step_seconds"], strict=True):
        assert began >= ended - 1e-6 and seconds > 0
        ended = began + seconds


def test_blocks_are_counted_before_finished_sequences_leave() -> None:
    columns = record().columns
    assert columns["used_blocks"][-1] > 0
    assert columns["num_running"][-1] > 0
    totals = {sum(row) for row in zip(*(columns[f"{kind}_blocks"] for kind in ("used", "cached", "free")), strict=True)}  # type: ignore[literal-required]
    assert len(totals) == 1


def test_the_allocators_history_is_written_and_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    memory = SimpleNamespace(
        _record_memory_history=lambda enabled="all", max_entries=0: calls.append(enabled),
        _dump_snapshot=lambda path: (calls.append("dump"), Path(path).write_bytes(b"history")),
    )
    monkeypatch.setattr(torch.cuda, "memory", memory)
    path = tmp_path / "memory.pickle"
    with pytest.raises(RuntimeError), allocations_recorded(str(path)):
        raise RuntimeError("out of memory")
    assert path.read_bytes() == b"history", "a failure is what the history is for"
    assert calls == ["all", "dump", None]
    with allocations_recorded(None):
        pass
    assert len(calls) == 3
