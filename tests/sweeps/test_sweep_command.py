"""``kvplan sweep`` at the prompt: bad input is one sentence, a hint and the right exit code; a dry run runs nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sweep_helpers import write_tiny_model

from kvplan.cli import main


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        ([], 2, "No model given"),
        (["--model", "gpt-none"], 2, "gpt-none"),
        (["--model", "gpt2", "--gpu-memory-utilization", "1.7"], 2, "at most 1, got 1.7"),
        (["--model", "gpt2", "--block-size", "0"], 2, "block_size must be at least 1, got 0"),
        (["--model", "gpt2", "--max-model-len", "banana"], 2, "'banana' is not a number"),
        (["--model", "gpt2", "--num-prompts", "0"], 2, "--num-prompts must be at least 1"),
        (["--model", "gpt2", "--request-rate", "-1"], 2, "--request-rate must be above 0"),
        (["--model", "gpt2", "--request-rate", "1e-300"], 2, "--request-rate must be at least 1e-06, got 1e-300"),
        (["--model", "gpt2", "--num-prompts", "100000000000"], 2, "--num-prompts must be at most 10,000,000"),
        (
            ["--model", "gpt2", "--seed", "99999999999999999999999"],
            2,
            "--seed must be at most 9,223,372,036,854,775,807",
        ),
        (["--model", "gpt2", "--prefix-len", "1000000000"], 2, "--prefix-len '1000000000' is more than 100,000,000"),
        (["--model", "gpt2", "--request-rate", "2", "--burstiness", "1e-8"], 2, "A burstiness of 1e-08 is too low"),
        (["--model", "gpt2", "--request-rate", "2", "--burstiness", "inf"], 2, "--burstiness must be finite"),
        (["--model", "gpt2", "--trial-timeout", "inf"], 2, "--trial-timeout inf is too long"),
        (["--model", "gpt2", "--device", "tpu"], 2, "--device 'tpu'"),
        (["--model", "gpt2", "--device-memory", "lots"], 2, "'lots' is not an amount of memory"),
        (["--model", "gpt2", "--device", "cpu", "--device-memory", "900TiB"], 1, "exceeds the"),
        (["--model", "gpt2", "--load-format", "gguf"], 1, "no gguf weights"),
        (["--model", "gpt2", "--workload", "/nowhere/at-all.jsonl"], 1, "cannot be read"),
        (["--resume", "/nowhere/at-all"], 1, "holds no sweep"),
        (["--resume", "/nowhere/at-all", "--dry-run"], 2, "cannot be used with"),
        (["--model", "gpt2", "--frobnicate"], 2, "frobnicate"),
    ],
)
def test_bad_input_is_one_sentence_and_a_hint(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, part: str
) -> None:
    assert main(["sweep", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line]
    assert lines[0].startswith("error: ")
    assert part in lines[0]
    assert len(lines) <= 2
    assert "Traceback" not in captured.err


def test_a_directory_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["sweep", "--model", "gpt2", "--device", "cpu", "--out", str(blocked / "run")]) == 1
    captured = capsys.readouterr()
    assert "cannot be written" in captured.err
    assert "hint: " in captured.err


def test_dry_run_tells_trials_outcomes_and_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_model(tmp_path / "model")
    arguments = ["sweep", "--model", str(model), "--device", "cpu", "--device-memory", "1GiB", "--dry-run"]
    axes = ["--gpu-memory-utilization", "0.0001,0.9", "--max-num-seqs", "2,4"]
    assert main([*arguments, *axes, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [trial["predicted_status"] for trial in answer["trials"]] == ["ok", "ok", "oom_weights", "oom_weights"]
    assert answer["seconds"] > 0
    assert main([*arguments, *axes]) == 0
    printed = capsys.readouterr().out
    assert "4 trials, about" in printed
    assert "2 oom_weights" in printed
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]


def test_a_whole_sweep_at_the_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One JSON document on stdout, every file of the contract in the directory, and a resume that has nothing to do."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = write_tiny_model(tmp_path / "model")
    run = tmp_path / "run"
    options = ["--device-memory", "1GiB", "--num-prompts", "4", "--input-len", "8..16", "--output-len", "2..4"]
    options.append("--no-rerun")
    axes = ["--gpu-memory-utilization", "0.0001,0.9", "--max-num-seqs", "2,4"]
    assert main(["sweep", "--model", str(model), "--device", "cpu", "--out", str(run), *options, *axes, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["status_counts"] == {"ok": 2, "oom_weights": 2}
    assert summary["predictions"]["block_bytes_equal"] == summary["predictions"]["num_compared"] == 2
    names = {path.name for path in run.iterdir()}
    assert {"trials.jsonl", "results.csv", "manifest.json", "summary.json", "report.html"} <= names
    assert any(name.endswith(".png") for name in names)
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["versions"]["torch"]
    before = (run / "trials.jsonl").read_bytes()

    assert main(["sweep", "--resume", str(run), "--seed", "4"]) == 1
    assert "--seed was 0, now 4" in capsys.readouterr().err
    assert main(["sweep", "--model", "gpt2", "--device", "cpu", "--out", str(run)]) == 1
    assert "already holds a sweep" in capsys.readouterr().err
    assert main(["sweep", "--resume", str(run), "--seed", "0"]) == 0
    assert "Best settings" in capsys.readouterr().out
    assert (run / "trials.jsonl").read_bytes() == before
