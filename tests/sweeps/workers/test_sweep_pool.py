"""Trials on several workers at once: the rows are those of one worker, whichever of them are lost meanwhile."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from local_pool import LocalPool
from sweep_helpers import FAKE_WORKER, Notes, tiny_plan

from kvplan.errors import KvplanError, UsageError
from kvplan.runs.columns import Row
from kvplan.runs.directory import TRIALS
from kvplan.runs.trials import Trial, TrialSettings
from kvplan.sweeps.pool import MOST_LOST, PoolRunner
from kvplan.sweeps.progress import RichProgress, RunningTrial, SilentProgress
from kvplan.sweeps.schedules.reruns import FIRST_RERUN, reruns_after
from kvplan.sweeps.session import SweepOutcome, resume_sweep, run_new_sweep

AXES = {"max_num_seqs": "1..8*2", "gpu_memory_utilization": "0.05,0.9"}
OF_THE_CLOCK = {"run_id", "started_at", "trial_seconds", "predicted_seconds", "learned_time_factor", "num_lost_workers"}
OF_THE_CLOCK |= {"prediction_origin"}  # none until a trial has been timed, by whichever worker
OF_THE_CLOCK |= {"pred_output_throughput", "pred_median_ttft_ms", "pred_median_tpot_ms", "pred_median_itl_ms"}
OF_THE_CLOCK |= {"throughput_over_pred", "ttft_over_pred", "tpot_over_pred"}


class Case:
    """One sweep over a local pool."""

    def __init__(self, tmp_path: Path, **options: Any) -> None:
        self.progress = Notes()
        self.pool: LocalPool | None = None
        self._tmp_path, self._options = tmp_path, options

    def run(self, name: str = "run", axes: dict[str, str] = AXES, **plan_options: Any) -> SweepOutcome:
        plan = tiny_plan(self._tmp_path, axes, **plan_options)
        return run_new_sweep(plan, self._tmp_path / name, self.progress, command="test", pool_of=self._pool_of)

    def resume(self, name: str = "run") -> SweepOutcome:
        return resume_sweep(self._tmp_path / name, self.progress, pool_of=self._pool_of)

    def _pool_of(self, plan: Any, identity: Any) -> LocalPool:
        number = len(list(self._tmp_path.glob("pool-*")))
        directory = self._tmp_path / f"pool-{number}"
        directory.mkdir()
        self.pool = LocalPool(plan, identity, directory, **self._options)
        return self.pool


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of one worker."""
    directory = tmp_path_factory.mktemp("serial")
    plan = tiny_plan(directory, AXES)
    run_new_sweep(plan, directory / "run", SilentProgress(), command="test", worker_command=FAKE_WORKER)
    return comparable(stored(directory / "run"))


def stored(directory: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line)["row"] for line in (directory / TRIALS).read_text().splitlines()]
    return sorted(rows, key=lambda row: row["trial_number"])


def comparable(rows: list[Any]) -> list[dict[str, Any]]:
    """Rows without times, and with the model's name for its path, which each test has in a folder of its own."""
    return [
        {key: value for key, value in row.items() if key not in OF_THE_CLOCK} | {"model_id": Path(row["model_id"]).name}
        for row in rows
    ]


def test_two_workers_write_the_rows_of_one(tmp_path: Path, undisturbed: list[dict[str, Any]]) -> None:
    case = Case(tmp_path, together=True)
    outcome = case.run()
    assert case.pool is not None
    assert all(host.served for host in case.pool.hosts), "both had a trial at once"
    assert comparable(stored(tmp_path / "run")) == undisturbed
    assert comparable(outcome.rows) == undisturbed, "in the order of the plan, whichever ended first"
    assert {row["num_lost_workers"] for row in outcome.rows} == {0}
    with (tmp_path / "run" / "results.csv").open(newline="") as listed:
        assert [row["trial_number"] for row in csv.DictReader(listed)] == [
            str(row["trial_number"]) for row in outcome.rows
        ]
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["versions"]["engine"] == "fake"


def test_the_trial_of_a_lost_worker_goes_to_another(tmp_path: Path, undisturbed: list[dict[str, Any]]) -> None:
    case = Case(tmp_path, num_losing=2, together=True)
    outcome = case.run()
    assert comparable(outcome.rows) == undisturbed
    assert sum(row["num_lost_workers"] or 0 for row in outcome.rows) == 2, "each of the two with its first trial"
    assert any("was lost: it was unplugged" in line for line in case.progress.lines)


def test_a_trial_that_takes_its_workers_with_it_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, size=1, lost_with=(4,), num_losing=MOST_LOST + 1)
    outcome = case.run(axes={"max_num_seqs": "2,4"})
    assert [row["status"] for row in outcome.rows] == ["crash", "ok"]
    failed = outcome.rows[0]
    assert failed["num_lost_workers"] == MOST_LOST + 1
    assert "6 workers were lost while this trial ran: the last one was unplugged" in failed["error"]


def test_a_worker_that_does_not_fit_is_left_out(tmp_path: Path, undisturbed: list[dict[str, Any]]) -> None:
    case = Case(tmp_path, unfit=("it has a GPU of another kind.",))
    assert comparable(case.run().rows) == undisturbed
    assert case.progress.lines == ["worker 0 is left out: it has a GPU of another kind."]
    assert case.pool is not None
    assert case.pool.hosts[0].served == []


def test_without_any_worker_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(PoolRunner):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments, patience_seconds=0.0)

    monkeypatch.setattr("kvplan.sweeps.session.PoolRunner", Impatient)
    with pytest.raises(KvplanError, match=r"No worker has been available for 0 s\. it has kvplan 0\.0\.1"):
        Case(tmp_path, size=1, unfit=("it has kvplan 0.0.1.",)).run()
    assert not (tmp_path / "run").exists(), "nothing was measured, so there is nothing to continue"


def test_a_sweep_that_was_cut_short_continues(tmp_path: Path, undisturbed: list[dict[str, Any]]) -> None:
    Case(tmp_path).run()
    path = tmp_path / "run" / TRIALS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[2:5]) + b'{"torn')
    case = Case(tmp_path)
    outcome = case.resume()
    assert comparable(outcome.rows) == undisturbed
    assert case.pool is not None
    assert sum(len(host.served) for host in case.pool.hosts) == len(undisturbed) - 3


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"boundary": ("max_model_len",)}, "--boundary"),
        ({"search": "max_concurrency=1..4", "slo_seconds": {"ttft": 1.0}}, "--search"),
    ],
)
def test_a_search_is_refused(tmp_path: Path, options: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} takes each trial from the results of those before"):
        Case(tmp_path).run(axes={"gpu_memory_utilization": "0.5"}, **options)


def test_a_terminal_shows_what_every_worker_does() -> None:
    output = io.StringIO()
    progress = RichProgress(output)
    trial = Trial(1, TrialSettings(0.9, 4, 16, 128, 512))
    progress.start(0, 20, 10.0, ("max_num_seqs",))
    event: Any = {
        "type": "progress", "output_tokens_per_second": 250.0, "kv_usage": 0.5, "num_running": 3, "num_waiting": 1,
    }  # fmt: skip
    progress.running([RunningTrial("node-1", trial, None), RunningTrial("node-2", trial, event)])
    assert progress.live_text.splitlines() == [
        "node-1: 4 sequences",
        "node-2: 250 tokens/s, KV usage 50.0 %, 3 running, 1 waiting (4 sequences)",
    ]
    progress.running([RunningTrial(f"node-{number}", trial, None) for number in range(15)])
    assert progress.live_text.splitlines()[-1] == "and 3 workers more"
    progress.running([])
    assert progress.live_text == "waiting for workers"
    progress.note("node-1 was lost")
    progress.stop()
    assert "node-1 was lost" in output.getvalue()


def test_outliers_are_run_again_after_all_others() -> None:
    """Noisy runs first, then those far from their siblings; never more than a tenth of the trials, and two."""
    settings = TrialSettings(0.9, 4, 16, 128, 512)
    trials = [Trial(number, settings, run_number=number) for number in range(1, 6)]

    def rows(change: Callable[[int], dict[str, Any]]) -> dict[str, Row]:
        plain = {"status": "ok", "load_format": "dummy", "output_throughput": 100.0, "other_cpu_pct": 1.0}
        return {trial.trial_id: plain | change(trial.number) for trial in trials}  # type: ignore[misc]

    assert reruns_after(trials, rows(lambda number: {})) == ()
    far = reruns_after(trials, rows(lambda number: {"output_throughput": 10.0} if number == 3 else {}))
    assert [(again.number, again.rerun_of, again.run_number) for again in far] == [(6, 3, FIRST_RERUN)]
    noisy = reruns_after(trials, rows(lambda number: {"other_cpu_pct": 90.0}))
    assert [(again.number, again.rerun_of) for again in noisy] == [(6, 1), (7, 2)]
    assert [again.run_number for again in noisy] == [FIRST_RERUN, FIRST_RERUN + 1]
    assert len({again.trial_id for again in noisy}) == 2
