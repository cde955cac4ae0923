"""``kvplan sweep`` at the prompt: bad input is one sentence, a hint and the right exit code; a dry run runs nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sweep_helpers import write_tiny_model

from kvplan.cli import main


def test_a_directory_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["sweep", "--model", "gpt2", "--device", "cpu", "--out", str(blocked / "run")]) == 1
    captured = capsys.readouterr()
    assert "cannot be written" in captured.err
    assert "hint: " in captured.err


def test_dry_run_tells_trials_outcomes_and_time(
    tmp_path: Path, answer_of: Callable[..., Any], printed_by: Callable[..., str]
) -> None:
    model = write_tiny_model(tmp_path / "model")
    arguments = ["sweep", "--model", str(model), "--device", "cpu", "--device-memory", "1GiB", "--dry-run"]
    axes = ["--gpu-memory-utilization", "0.0001,0.9", "--max-num-seqs", "2,4"]
    answer = answer_of(*arguments, *axes)
    assert [trial["predicted_status"] for trial in answer["trials"]] == ["ok", "ok", "oom_weights", "oom_weights"]
    assert answer["seconds"] > 0
    printed = printed_by(*arguments, *axes)
    assert "4 trials, about" in printed
    assert "2 oom_weights" in printed
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]


def test_a_whole_sweep_at_the_prompt(
    tmp_path: Path,
    answer_of: Callable[..., Any],
    printed_by: Callable[..., str],
    said_by: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One JSON document on stdout, every file of the contract in the directory, and a resume that has nothing to do."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = write_tiny_model(tmp_path / "model")
    run = tmp_path / "run"
    options = ["--device-memory", "1GiB", "--num-prompts", "4", "--input-len", "8..16", "--output-len", "2..4"]
    options.append("--no-rerun")
    axes = ["--gpu-memory-utilization", "0.0001,0.9", "--max-num-seqs", "2,4"]
    summary = answer_of("sweep", "--model", str(model), "--device", "cpu", "--out", str(run), *options, *axes)
    assert summary["status_counts"] == {"ok": 2, "oom_weights": 2}
    assert summary["predictions"]["block_bytes_equal"] == summary["predictions"]["num_compared"] == 2
    names = {path.name for path in run.iterdir()}
    assert {"trials.jsonl", "results.csv", "manifest.json", "summary.json", "report.html"} <= names
    assert any(name.endswith(".png") for name in names)
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["versions"]["torch"]
    before = (run / "trials.jsonl").read_bytes()

    assert "--seed was 0, now 4" in said_by("sweep", "--resume", str(run), "--seed", "4", code=1)
    assert "already holds a sweep" in said_by("sweep", "--model", "gpt2", "--device", "cpu", "--out", str(run), code=1)
    assert "Best settings" in printed_by("sweep", "--resume", str(run), "--seed", "0")
    assert (run / "trials.jsonl").read_bytes() == before
