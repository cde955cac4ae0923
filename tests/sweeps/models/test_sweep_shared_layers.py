"""Sweeps whose equal layers share dummy weights: rows are marked, memory is that of the whole model."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_helpers import tiny_plan

from kvplan.calibrate.trials import read_trial_sets
from kvplan.errors import KvplanError, UsageError
from kvplan.reports.findings import shared_sentence
from kvplan.runs.storage.reader import load_run
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import SHARED_NOTICE, make_plan
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import run_new_sweep


def test_rows_are_marked_and_memory_is_as_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = tiny_plan(tmp_path, {"max_num_seqs": "4"}, load_format="dummy", dummy_layers="shared")
    assert SHARED_NOTICE in plan.notices
    outcome = run_new_sweep(plan, tmp_path / "out", SilentProgress(), command="test")
    (row,) = outcome.rows
    assert (row["status"], row["dummy_layers"], row["weights_origin"]) == ("ok", "shared", "loaded")
    assert row["num_blocks_total"] == row["num_blocks_predicted"]
    assert row["output_throughput"]
    assert "one copy of dummy weights" in shared_sentence(load_run(outcome.directory))
    with pytest.raises(KvplanError, match="layers shared their weights"):
        read_trial_sets([outcome.directory])


def test_the_device_may_be_larger_than_this_machine() -> None:
    options = SweepOptions("llama-3.1-8b", {}, "cpu", "900TiB", load_format="dummy", dummy_layers="shared")
    assert make_plan(options).device.memory_bytes == 900 * 1024**4
    with pytest.raises(KvplanError, match="exceeds"):
        make_plan(SweepOptions("llama-3.1-8b", {}, "cpu", "900TiB", load_format="dummy"))


def test_only_dummy_weights_are_shared() -> None:
    with pytest.raises(UsageError, match="--dummy-layers shared is for dummy weights"):
        SweepOptions("gpt2", dummy_layers="shared")
    with pytest.raises(UsageError, match="Unknown --dummy-layers 'half'"):
        SweepOptions("gpt2", load_format="dummy", dummy_layers="half")
