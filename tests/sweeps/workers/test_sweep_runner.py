"""The runner against a worker that dies, hangs or talks nonsense: one row each, and the sweep goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from sweep_helpers import FAKE_WORKER, assert_all_gone, tiny_plan

from kvplan.errors import KvplanError
from kvplan.machine.host import KillCounter
from kvplan.runs.columns import COLUMN_NAMES
from kvplan.sweeps.options import refuse_differences
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import SweepOutcome, resume_sweep, run_new_sweep
from kvplan.sweeps.worker.client import StageDeadline, TimeLimits
from kvplan.sweeps.worker.failures import classify_failure
from kvplan_engine.errors import SettingsError


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: dict[str, str], **options: object) -> SweepOutcome:
    monkeypatch.setenv("FAKE_WORKER_BEHAVIOUR", json.dumps(behaviour))
    monkeypatch.setenv("FAKE_WORKER_LOG", str(tmp_path / "begun.log"))
    plan = tiny_plan(tmp_path, **options)
    return run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="test", worker_command=FAKE_WORKER)


def begun(tmp_path: Path) -> list[tuple[int, str]]:
    log = tmp_path / "begun.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(line.split()[0]), line.split()[1]) for line in lines]


def statuses(outcome: SweepOutcome) -> dict[int, str]:
    return {row["max_num_seqs"]: row["status"] for row in outcome.rows}


def test_one_worker_serves_all_trials_and_rows_follow_the_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = run(tmp_path, monkeypatch, {})
    assert statuses(outcome) == {1: "ok", 2: "ok", 4: "ok", 8: "ok"}
    assert len({pid for pid, _ in begun(tmp_path)}) == 1
    for row in outcome.rows:
        assert list(row) == list(COLUMN_NAMES)
        assert row["num_blocks_predicted"] > 0
        assert row["block_bytes_predicted"] == 2 * 2 * 32 * 16 * 4
        assert row["engine_version"] == "fake"
    assert outcome.summary["best"][0]["settings"]["max_num_seqs"] == 8
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == outcome.summary


@pytest.mark.parametrize(
    ("behaviour", "status", "part_of_error"),
    [
        ("exit", "crash", "exit code 3: the sky fell on the engine"),
        ("sigkill", "crash", "SIGKILL"),
        ("garbage", "crash", "sent an invalid message"),
        ("sigsegv", "crash", "SIGSEGV"),
        ("sigsegv-full", "oom_runtime", "SIGSEGV with 98 % of the device's memory in use"),
    ],
)
def test_a_dead_worker_costs_its_row_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, status: str, part_of_error: str
) -> None:
    outcome = run(tmp_path, monkeypatch, {"4": behaviour})
    assert statuses(outcome) == {1: "ok", 2: "ok", 4: status, 8: "ok"}
    failed = next(row for row in outcome.rows if row["max_num_seqs"] == 4)
    assert part_of_error in failed["error"]
    assert failed["num_blocks_predicted"] > 0
    assert failed["output_throughput"] is None
    assert failed["num_restarts"] == (3 if behaviour == "sigkill" else 0)
    assert len({pid for pid, _ in begun(tmp_path)}) == 2 + failed["num_restarts"]


def test_a_worker_that_the_kernel_killed_for_memory_is_not_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KillCounter, "has_killed", lambda self: True)
    outcome = run(tmp_path, monkeypatch, {"4": "sigkill"})
    assert statuses(outcome) == {1: "ok", 2: "ok", 4: "crash", 8: "ok"}
    failed = next(row for row in outcome.rows if row["max_num_seqs"] == 4)
    assert "this machine's memory ran out" in failed["error"]
    assert failed["num_restarts"] == 0


def test_a_hung_trial_is_ended_by_its_time_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    outcome = run(tmp_path, monkeypatch, {"2": "hang"}, trial_timeout=0.7)
    assert statuses(outcome) == {1: "ok", 2: "timeout", 4: "ok", 8: "ok"}
    assert time.monotonic() - started < 20
    assert_all_gone({pid for pid, _ in begun(tmp_path)})


def test_silence_while_serving_ends_a_trial_long_before_its_time_is_up() -> None:
    deadline = StageDeadline(TimeLimits(serving=1000.0, silence=5.0))
    deadline.on_event({"type": "stage", "stage": "serving"})
    assert deadline.at - time.monotonic() < 5.1
    assert "no progress for 5 s" in deadline.sentence
    deadline = StageDeadline(TimeLimits(serving=3.0, silence=5.0))
    deadline.on_event({"type": "stage", "stage": "serving"})
    deadline.on_event({"type": "progress"})
    assert deadline.at - time.monotonic() < 3.1
    assert "serving took over 3 s" in deadline.sentence
    deadline = StageDeadline(TimeLimits(loading=300.0, silence=5.0))
    assert deadline.at - time.monotonic() > 290


def test_a_worker_that_never_starts_is_a_row_each(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, {"max_num_seqs": "1,2"})
    command = (sys.executable, "-c", "raise SystemExit('no engine here')")
    outcome = run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="test", worker_command=command)
    assert statuses(outcome) == {1: "crash", 2: "crash"}
    assert "no engine here" in outcome.rows[0]["error"]


def test_ctrl_c_writes_what_is_there_and_resume_runs_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_WORKER_SECONDS", "0.4")
    stopped = threading.Event()

    def interrupt_the_second_trial() -> None:
        while len(begun(tmp_path)) < 2 and not stopped.wait(0.01):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt_the_second_trial)
    # A shell starts its background jobs with SIGINT ignored, and Python leaves it so: the test must not depend on that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupter.start()
        outcome = run(tmp_path, monkeypatch, {})
    finally:
        stopped.set()
        interrupter.join()
        signal.signal(signal.SIGINT, before)
    assert outcome.interrupted
    assert 0 < len(outcome.rows) < 4
    assert outcome.summary["interrupted"]
    assert (tmp_path / "run" / "results.csv").exists()
    monkeypatch.setenv("FAKE_WORKER_SECONDS", "0")
    finished = {row["trial_id"] for row in outcome.rows}
    continued = resume_sweep(tmp_path / "run", SilentProgress(), worker_command=FAKE_WORKER)
    assert not continued.interrupted
    assert statuses(continued) == {1: "ok", 2: "ok", 4: "ok", 8: "ok"}
    redone = [trial_id for _, trial_id in begun(tmp_path) if trial_id in finished]
    assert sorted(redone) == sorted(finished)


def test_resume_refuses_other_settings_and_shows_the_difference(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, seed=3)
    refuse_differences(plan.options, {"seed": 3, "max_num_seqs": "1..8*2"})
    with pytest.raises(KvplanError) as raised:
        refuse_differences(plan.options, {"seed": 4, "block_size": "8", "num_prompts": 8})
    assert "--seed was 3, now 4" in raised.value.message
    assert "--block-size was not given, now 8" in raised.value.message
    assert "num-prompts" not in raised.value.message


def test_resume_refuses_another_model_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, monkeypatch, {}, axes={"max_num_seqs": "1"})
    config = tmp_path / "tiny-model" / "config.json"
    config.write_text(config.read_text().replace('"n_layer": 2', '"n_layer": 3'))
    with pytest.raises(KvplanError, match="has changed since this sweep was started"):
        resume_sweep(tmp_path / "run", SilentProgress(), worker_command=FAKE_WORKER)


def test_a_sentence_that_begins_with_a_setting_keeps_its_name() -> None:
    for message, recorded in (("max_model_len 4,096 is more", "max_model_len 4,096 is more"), ("one is", "One is")):
        row = classify_failure(SettingsError(message), "setup")
        assert row is not None and row["error"] == recorded
