"""Sweeps of a tiny model through the real worker and the real engine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from small_configs import small_configs
from sweep_helpers import tiny_plan

from kvplan.errors import KvplanError
from kvplan.runs.columns import COLUMN_NAMES
from kvplan.runs.directory import read_trials
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import make_plan
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import SweepOutcome, run_new_sweep


class Watcher(SilentProgress):
    """Remembers what a user would have been shown, and may kill the worker in the middle of a trial."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.events: list[Mapping[str, Any]] = []
        self._kill_at = kill_at
        self._num_serving = 0

    def event(self, message: Mapping[str, Any]) -> None:
        self.events.append(message)
        if message["type"] == "stage" and message["stage"] == "serving":
            self._num_serving += 1
            if self._num_serving == self._kill_at:
                os.kill(self.worker_pid(), signal.SIGKILL)

    @staticmethod
    def worker_pid() -> int:
        """The only child of this process that runs the worker's module."""
        own = os.getpid()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(FileNotFoundError, ProcessLookupError):  # others end meanwhile
                is_worker = b"kvplan.sweeps.worker.process" in (entry / "cmdline").read_bytes()
                if is_worker and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == own:
                    return int(entry.name)
        raise AssertionError("no worker runs")


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model this small gains nothing from threads, and their barriers take long on a machine that others use."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(
    tmp_path: Path, axes: dict[str, str], *, kill_at: int | None = None, **options: Any
) -> tuple[SweepOutcome, Watcher]:
    plan = tiny_plan(tmp_path, axes, **options)
    watcher = Watcher(kill_at)
    return run_new_sweep(plan, tmp_path / "run", watcher, command="test"), watcher


def utilization_for_blocks(tmp_path: Path, num_blocks: int) -> float:
    """The utilization at which about that many blocks of 4 tokens are left for 8 sequences."""
    predictor = tiny_plan(tmp_path).predictor
    memory = predictor.memory(TrialSettings(0.9, 8, 4, 32, 512))
    needed = memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes + num_blocks * memory.block_bytes
    return round(needed / predictor.device.memory_bytes, 6)


def notices(watcher: Watcher) -> list[str]:
    return [str(event["text"]) for event in watcher.events if event["type"] == "notice"]


def test_a_sweep_without_kernels_says_so_before_its_first_trial_and_in_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two kinds of weights are two processes, and one warning."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    axes = {"max_num_seqs": "2", "quantization": "none,int8"}
    outcome, watcher = run(tmp_path, axes)
    assert notices(watcher) == [
        "warning: no CPU kernels, because $CXX is 'no-such-compiler', which is not installed. kvplan's engine runs on "
        "plain torch, 5 to 26 times slower: capacity is measured as always, speeds say nothing. hint: unset CXX"
    ]
    kinds = [event.get("stage") or event["type"] for event in watcher.events]
    assert kinds.index("notice") < kinds.index("serving")
    assert [(row["status"], row["kernels"], row["num_threads"]) for row in outcome.rows] == [("ok", "reference", 1)] * 2


def test_a_dtype_that_the_kernels_do_not_compute_in_is_said_too(tmp_path: Path) -> None:
    outcome, watcher = run(tmp_path, {"max_num_seqs": "2", "dtype": "float16"})
    assert [row["kernels"] for row in outcome.rows] == ["reference"]
    (notice,) = notices(watcher)
    assert notice.startswith("warning: the CPU kernels do not compute in float16.")


def test_possible_and_impossible_settings_side_by_side(tmp_path: Path) -> None:
    """Utilization 0.01, a context beyond the pool, a tight pool and one with room: one classified row each."""
    tight = utilization_for_blocks(tmp_path, 30)
    axes = {
        "gpu_memory_utilization": f"0.0001,0.01,{tight},0.9",
        "max_model_len": "32,256",
        "block_size": "4",
        "max_num_seqs": "8",
    }
    outcome, watcher = run(tmp_path, axes, input_len="8..24", output_len="4..8")
    by_setting = {(row["gpu_memory_utilization"], row["max_model_len"]): row for row in outcome.rows}
    assert len(by_setting) == 8
    assert all(row.keys() == set(COLUMN_NAMES) for row in outcome.rows)
    kernels = {row["kernels"] for row in outcome.rows if row["num_blocks_total"] is not None}
    assert all(str(name).startswith("cpu-") for name in kernels), kernels
    assert notices(watcher) == []
    for row in outcome.rows:
        assert row["status"] == row["predicted_status"], row
        assert row["block_bytes_predicted"] == 2 * 2 * 32 * 4 * 4
        if row["num_blocks_total"] is not None:
            assert row["block_bytes_predicted"] == row["block_bytes"]
            assert row["num_blocks_predicted"] == row["num_blocks_total"]
    assert by_setting[0.0001, 32]["status"] == "oom_weights"
    assert by_setting[0.0001, 32]["oom_phase"] == "weights"
    assert by_setting[0.01, 32]["status"] == "oom_kv_init"
    refused = by_setting[tight, 256]
    assert refused["status"] == "rejected_ctx"
    assert refused["largest_max_model_len"] == 4 * refused["num_blocks_predicted"]
    pressed = by_setting[tight, 32]
    assert pressed["status"] == "preempted"
    assert pressed["num_preemptions"] > 0
    assert pressed["recomputed_tokens"] > 0
    assert pressed["completed"] == 8
    served = by_setting[0.9, 256]
    assert served["status"] == "ok"
    assert served["completed"] == 8
    assert served["total_output_tokens"] > 8
    assert served["kv_usage_max"] > 0
    assert served["peak_allocated_bytes"] > 0
    assert served["meas_max_concurrency"] == served["pred_max_concurrency"] == 8
    assert {event["type"] for event in watcher.events} >= {"stage"}
    assert outcome.summary["predictions"]["num_blocks_max_error_pct"] == 0
    assert (
        outcome.summary["kv_waste"]["paged_waste_pct"] < 100 - outcome.summary["kv_waste"]["contiguous_utilization_pct"]
    )


@pytest.mark.slow
def test_a_trial_whose_worker_is_killed_is_begun_anew_and_says_so(tmp_path: Path) -> None:
    lasts = {"num_prompts": 24, "request_rate": 20.0}  # a second of arrivals: the signal comes while they do
    outcome, _ = run(tmp_path, {"max_num_seqs": "1..4*2"}, kill_at=2, **lasts)
    assert [row["status"] for row in outcome.rows] == ["ok", "ok", "ok"]
    assert [row["num_restarts"] for row in outcome.rows] == [0, 1, 0]
    assert len(read_trials(tmp_path / "run" / "trials.jsonl").records) == 3


@pytest.mark.slow
def test_a_model_the_engine_does_not_run_is_said_once_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only the engine knows, because it is another version than the planner expects."""
    model = tmp_path / "config.json"
    model.write_text(json.dumps(small_configs()["Zamba2ForCausalLM"]))
    options = SweepOptions(model=str(model), device="cpu", device_memory="256MiB", axes={"max_num_seqs": "1,2"})
    with pytest.raises(KvplanError, match="Zamba2ForCausalLM"):
        make_plan(options)
    monkeypatch.setattr("kvplan.sweeps.plan.refuse_architecture", lambda architecture, **_: None)
    plan = make_plan(options)
    with pytest.raises(KvplanError, match="Zamba2ForCausalLM"):
        run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="test")
    assert not (tmp_path / "run").exists()
