"""The default sweep on GPUs of every kind: blocks and outcomes are those predicted, whoever else uses the GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from memory_gpu import GIB, KIB, MIB, Card, take_card

from kvplan.cli import main
from kvplan.machine import device as machine_module
from kvplan.machine.device import OpenedGpu
from kvplan.runs.columns import Row
from kvplan.runs.trials import Trial
from kvplan.sweeps import manifest
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import SweepPlan, make_plan
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import resume_sweep, run_new_sweep
from kvplan.sweeps.worker.answers import opened_gpu
from kvplan.sweeps.worker.client import Worker
from kvplan.workers.process import WorkerDied


def growing(first: int, each: int, most: int) -> Callable[[int], int]:
    """What others hold, more at each look."""
    return lambda looks: min(first + looks * each, most)


CARDS = {
    "bare context": Card("NVIDIA H100 80GB HBM3", 81_079 * MIB, 310 * MIB),
    "A100, as measured": Card("NVIDIA A100-SXM4-80GB", 81_050 * MIB, 788 * MIB, capability=(8, 0)),
    "large context": Card("NVIDIA H200", 143_156 * MIB, 1229 * MIB, library_bytes=420 * MIB),
    "desktop": Card("NVIDIA GeForce RTX 4090", 24_080 * MIB, 460 * MIB, others=lambda _: 614 * MIB, capability=(8, 9)),
    "a neighbour that grows": Card(
        "NVIDIA L4", 22_478 * MIB, 330 * MIB, others=growing(300 * MIB, 7 * MIB + 4096, 5 * GIB), capability=(8, 9)
    ),
    "a neighbour that comes": Card(
        "NVIDIA A100-PCIE-40GB", 40_326 * MIB, 420 * MIB, others=lambda looks: 0 if looks < 40 else 3 * GIB
    ),
    "a neighbour that goes": Card(
        "NVIDIA A100-PCIE-40GB", 40_326 * MIB, 420 * MIB, others=lambda looks: 9 * GIB if looks < 40 else 0
    ),
    "a small slice": Card("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9_984 * MIB, 300 * MIB),
    "a large slice": Card("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19_968 * MIB, 520 * MIB, capability=(8, 0)),
    "unified memory": Card(
        *("NVIDIA GB10", 122_570 * MIB, 640 * MIB),
        others=growing(11 * GIB, 3 * MIB, 14 * GIB),
        capability=(12, 1),
        cached_bytes=90 * GIB,
    ),
    "the other one of a mixed box": Card("Tesla V100-SXM2-32GB", 32_501 * MIB, 305 * MIB, capability=(7, 0)),
    "not in the catalog": Card(
        "NVIDIA Graphics Device",
        15_102 * MIB,
        900 * MIB,
        graph_bytes=lambda tokens: 64 * KIB * tokens,
        capability=(7, 5),
    ),
}
STEADY = [name for name in CARDS if not name.startswith("a neighbour") and name != "unified memory"]
IN_CI = {"large context", "a neighbour that grows"}


def sweep(tmp_path: Path, card: Card, monkeypatch: pytest.MonkeyPatch) -> tuple[SweepPlan, list[Row]]:
    """The plan as it was announced before the first trial, and the rows."""
    take_card(monkeypatch, card)
    answered = opened_gpu()["gpu"]
    assert answered is not None
    options = SweepOptions(model="gpt2", device="auto", rerun=False, load_format="dummy", num_prompts=32)
    plan = make_plan(options, ask=lambda: OpenedGpu(**answered))
    assert (plan.device.name, plan.device.memory_bytes, plan.device.uuid) == (card.name, card.total_bytes, "ab-cd")
    announced: list[SweepPlan] = []
    outcome = run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="test", announce=announced.append)
    return announced[0], outcome.rows


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_CI else pytest.mark.exhaustive) for name in CARDS]
)
def test_blocks_and_outcomes_are_those_predicted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each row; and of a GPU whose other users hold still, in the plan before the first trial as well."""
    plan, rows = sweep(tmp_path, CARDS[name], monkeypatch)
    statuses = [row["status"] for row in rows]
    assert len(rows) == 32
    assert statuses == [row["predicted_status"] for row in rows]
    carved = [row for row in rows if row["num_blocks_total"] is not None]
    assert [row["num_blocks_total"] for row in carved] == [row["num_blocks_predicted"] for row in carved]
    assert {"oom_weights", "oom_kv_init"} <= set(statuses) and len(carved) >= 12
    if name in STEADY:
        assert statuses == [prediction.status for prediction in plan.predictions()]
        assert {"ok", "rejected_ctx"} <= set(statuses)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "close enough to stand in for vLLM's" in summary["stand_in"]["sentence"]
    stored = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert [Trial.from_json(record) for record in stored["trials"]] == list(plan.trials)


AXES = {"gpu_memory_utilization": "0.04,0.5,0.9", "max_num_seqs": "4,8"}


def given(card: Card, monkeypatch: pytest.MonkeyPatch) -> SweepPlan:
    """A sweep of settings that somebody gave."""
    take_card(monkeypatch, card)
    answered = opened_gpu()["gpu"]
    assert answered is not None
    options = SweepOptions(
        model="gpt2", axes=AXES, rerun=False, load_format="dummy", num_prompts=4, input_len="64", output_len="8"
    )
    return make_plan(options, ask=lambda: OpenedGpu(**answered))


def assert_predicted(rows: list[Row]) -> None:
    assert [row["status"] for row in rows] == [row["predicted_status"] for row in rows]
    assert all(row["num_blocks_total"] in (None, row["num_blocks_predicted"]) for row in rows)


GROWING = CARDS["a neighbour that grows"]


def test_settings_that_were_given_stay_and_their_rows_are_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = given(GROWING, monkeypatch)
    outcome = run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="test")
    assert [row["gpu_memory_utilization"] for row in outcome.rows] == [
        trial.settings.gpu_memory_utilization for trial in plan.trials
    ]
    assert {row["status"] for row in outcome.rows} >= {"ok", "oom_kv_init"}
    assert_predicted(outcome.rows)


def test_a_sweep_that_is_continued_predicts_its_rows_by_the_gpu_as_it_is_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has come meanwhile, with half of the GPU."""
    plan = given(GROWING, monkeypatch)
    run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="test")
    path = tmp_path / "run" / "trials.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    crowded = replace(GROWING, others=lambda _: 11 * GIB)
    take_card(monkeypatch, crowded)
    monkeypatch.setattr(manifest, "ask_own_worker", lambda: OpenedGpu(**(opened_gpu()["gpu"] or {})))
    rows = resume_sweep(tmp_path / "run", SilentProgress()).rows
    assert len(rows) == len(plan.trials)
    assert_predicted(rows)
    assert {row["status"] for row in rows if row["gpu_memory_utilization"] == 0.5} == {"ok", "oom_kv_init"}


def test_an_engine_that_dies_first_leaves_the_plan_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of its trial says why; no second loading is waited for."""
    take_card(monkeypatch, CARDS["bare context"])
    answered = opened_gpu()["gpu"]
    assert answered is not None
    options = SweepOptions(model="gpt2", rerun=False, load_format="dummy", num_prompts=2)
    plan = make_plan(options, ask=lambda: OpenedGpu(**answered))

    def die(*_: object) -> None:
        raise WorkerDied("The worker was ended by SIGSEGV.")

    monkeypatch.setattr(Worker, "ask_reserve", die)
    monkeypatch.setattr(Worker, "run_trial", die)
    announced: list[SweepPlan] = []
    outcome = run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="test", announce=announced.append)
    assert announced == [plan]
    assert {row["status"] for row in outcome.rows} == {"crash"}


def test_cached_files_are_no_overhead_of_a_gpu_that_shares_the_machine_s_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """90 of 120 GiB are cached files, which the driver counts as used: the engine would have had no pool at all."""
    card = CARDS["unified memory"]
    driver = take_card(monkeypatch, card)
    gpu = opened_gpu()["gpu"]
    assert gpu is not None
    assert gpu["overhead_bytes"] == card.context_bytes + card.others(driver.num_looks) + 256 * MIB


def test_a_dry_run_opens_no_gpu_and_says_what_it_assumes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], printed_by: Callable[..., str]
) -> None:
    driver = take_card(monkeypatch, CARDS["desktop"])
    monkeypatch.setattr(machine_module, "_first_gpu", lambda: (driver.card.name, driver.card.total_bytes))
    assert main(["sweep", "gpt2", "--dry-run", "--num-prompts", "4"]) == 0
    said = capsys.readouterr()
    assert "a dry run opens no GPU: that torch can use it, 640 MiB for context and libraries and" in said.err
    assert "on NVIDIA GeForce RTX 4090" in said.out
    assert json.loads(printed_by("sweep gpt2 --dry-run --json --num-prompts 4"))["assumed"].startswith(
        "a dry run opens no GPU"
    )
    assert (driver.num_looks, driver.num_opened) == (0, 0)
