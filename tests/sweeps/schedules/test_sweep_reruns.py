"""Outliers are run again, both rows stay, and what a median leaves out is told."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sweep_helpers import tiny_plan

from kvplan.machine.visible_gpu import ClockReadings, GpuClockMeter
from kvplan.runs.answers.outliers import excluded_runs, noise_reason, without_excluded
from kvplan.runs.answers.summary import summarize
from kvplan.runs.rows import empty_row
from kvplan.runs.trials import SETTING_NAMES, Trial, TrialSettings
from kvplan.sweeps.schedules.boundary_search import make_search
from kvplan.sweeps.schedules.reruns import WithReruns
from kvplan.sweeps.schedules.schedule import FixedSchedule, Step, simulate

BASE = TrialSettings(0.9, 8, 16, 256, 512)
MANIFEST: dict[str, Any] = {
    "run_id": "run", "model": {"id": "gpt2"}, "device": {"kind": "cpu", "name": "CPU"}, "workload": {"text": ""},
    "trials": [], "options": {"boundary": []},
}  # fmt: skip


def trials_of(num_settings: int, num_runs: int) -> tuple[Trial, ...]:
    settings = [BASE.with_changes(max_num_seqs=number + 1) for number in range(num_settings)]
    runs = [(run, setting) for run in range(1, num_runs + 1) for setting in settings]
    return tuple(Trial(number, setting, run) for number, (run, setting) in enumerate(runs, start=1))


def row_of(step: Step, throughput: float = 100.0, others_pct: float = 1.0) -> dict[str, Any]:
    trial = step.trial
    return empty_row() | {name: getattr(trial.settings, name) for name in SETTING_NAMES} | {
        "trial_id": trial.trial_id, "trial_number": trial.number, "run_number": trial.run_number, "status": "ok",
        "rerun_of": trial.rerun_of, "rerun_reason": trial.rerun_reason, "device": "cpu", "design_parts": "grid",
        "output_throughput": throughput, "median_tpot_ms": 5.0, "p99_ttft_ms": 9.0, "other_cpu_pct": others_pct,
        "num_clipped_prompts": 0, "failed": 0, "frag_pct": 3.0, "contiguous_utilization_pct": 20.0,
        "request_rate": "inf", "pred_output_throughput": 90.0, "pred_max_concurrency": 1, "meas_max_concurrency": 1,
    }  # fmt: skip


def played(trials: tuple[Trial, ...], answer: Callable[[Step], dict[str, Any]]) -> list[dict[str, Any]]:
    return [answer(step) for step in simulate(WithReruns(FixedSchedule(trials)), answer)]


def test_a_noisy_run_is_run_again_at_once_and_left_out() -> None:
    """The third trial of twelve ran while others had 60 % of the machine."""

    def answer(step: Step) -> dict[str, Any]:
        is_noisy = step.trial.settings.max_num_seqs == 3 and step.trial.run_number == 1
        return row_of(step, 40.0 if is_noisy else 100.0, 60.0 if is_noisy else 1.0)

    rows = played(trials_of(12, 1), answer)
    assert len(rows) == 13
    assert [row["trial_number"] for row in rows] == list(range(1, 14))
    again = rows[3]
    assert (again["rerun_of"], again["rerun_reason"]) == (1, "other processes used 60 % of the CPU")
    assert len({row["trial_id"] for row in rows}) == 13
    (exclusion,) = excluded_runs(rows)
    assert exclusion.trial_id == rows[2]["trial_id"]
    assert len(without_excluded(rows)) == 12
    summary = summarize(MANIFEST, rows)
    assert summary["excluded"][0]["reason"] == "other processes used 60 % of the CPU"
    assert (
        "run 1 of" in summary["excluded"][0]["sentence"] and "run 101 replaces it" in summary["excluded"][0]["sentence"]
    )
    assert summary["noise"] | {"num_reruns": 1, "num_noisy": 1} == summary["noise"]


def test_an_interrupted_sweep_counts_its_reruns_beside_its_plan() -> None:
    trials = trials_of(12, 1)
    rows = played(trials, lambda step: row_of(step, others_pct=60.0 if step.trial.rerun_of is None else 1.0))
    assert [row["rerun_of"] for row in rows[:4]] == [None, 1, None, 1]
    manifest: Any = MANIFEST | {"trials": [trial.as_json() for trial in trials]}
    summary = summarize(manifest, rows[:4], interrupted=True)
    assert (summary["num_finished"], summary["num_trials"]) == (4, 14), "ten of the twelve are left"


def test_a_run_far_from_its_siblings_is_run_again_when_all_are_there() -> None:
    def answer(step: Step) -> dict[str, Any]:
        is_far = (step.trial.settings.max_num_seqs, step.trial.run_number) == (2, 2)
        return row_of(step, 60.0 if is_far else 100.0 + min(step.trial.run_number, 3))

    rows = played(trials_of(4, 3), answer)
    assert len(rows) == 13
    assert rows[-1]["rerun_of"] == 2
    assert rows[-1]["rerun_reason"].startswith("-41 % from the median")
    best = summarize(MANIFEST, rows)["best"][0]
    assert best["figures"]["output_throughput"] >= 102.0
    assert [exclusion.run_number for exclusion in excluded_runs(rows)] == [2]


def test_a_setting_that_is_honestly_noisy_keeps_all_its_runs() -> None:
    rows = played(trials_of(3, 3), lambda step: row_of(step, 100.0 + 15.0 * step.trial.run_number))
    assert len(rows) == 9
    assert excluded_runs(rows) == []


def test_on_a_machine_that_is_always_busy_reruns_end_and_nothing_is_left_out() -> None:
    rows = played(trials_of(20, 1), lambda step: row_of(step, others_pct=80.0))
    assert 22 <= len(rows) <= 24
    assert excluded_runs(rows) == []
    assert all(noise_reason(row) for row in rows)


def test_a_slow_gpu_clock_is_noise_and_a_busy_cpu_beside_a_gpu_is_not() -> None:
    step = Step(trials_of(1, 1)[0])
    on_gpu = row_of(step, others_pct=80.0) | {"device": "cuda", "gpu_clock_pct": 95.0}
    assert noise_reason(on_gpu) is None
    assert noise_reason(on_gpu | {"gpu_clock_pct": 55.0}) == "the GPU ran at 55 % of its maximum clock"


def test_clocks_come_from_the_driver_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter((1980, 1500, 990))

    class NVMLError(Exception):
        pass

    def read(_handle: object, _kind: int) -> int:
        try:
            return next(readings)
        except StopIteration:
            raise NVMLError from None

    driver = SimpleNamespace(
        NVMLError=NVMLError, NVML_CLOCK_SM=1, nvmlInit=lambda: None, nvmlDeviceGetHandleByIndex=lambda _: "gpu",
        nvmlDeviceGetMaxClockInfo=lambda *_: 1980, nvmlDeviceGetClockInfo=read,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    meter = GpuClockMeter.open()
    meter.read()
    meter.start()
    for _ in range(3):
        meter.read()
    clock = meter.readings()
    assert (clock.mean_mhz, clock.min_mhz, clock.pct_of_max) == (1245.0, 990, pytest.approx(62.878, abs=1e-3))
    assert GpuClockMeter().readings() == ClockReadings()


def test_boundaries_with_several_runs_need_every_run(tmp_path: Path) -> None:
    """Contexts above 640 fail always, those above 512 in the second run: the boundary is where no run fails."""
    predictor = tiny_plan(tmp_path).predictor
    contexts = {"max_model_len": tuple(range(32, 1025, 32))}
    search = make_search(["max_model_len"], contexts, BASE, predictor, 0, num_runs=3)

    def answer(step: Step) -> dict[str, Any]:
        limit = 512 if step.trial.run_number == 2 else 640
        is_good = step.trial.settings.max_model_len <= limit and step.skip_sentence is None
        return row_of(step) | {"status": "ok" if is_good else "oom_runtime"}

    rows = [answer(step) for step in simulate(search, answer) if step.skip_sentence is None]
    (boundary,) = summarize(MANIFEST | {"options": {"boundary": ["max_model_len"]}}, rows)["boundaries"]
    assert (boundary["starts"], boundary["fails"]) == (512, 544)
    runs = Counter(row["max_model_len"] for row in rows if row["design_parts"] == "grid")
    assert runs[512] == 3 and runs[544] == 2
