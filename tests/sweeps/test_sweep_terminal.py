"""What a person sees of a sweep: which settings a line names, what disturbed it, and why nothing was served."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sweep_helpers import FAKE_WORKER, tiny_plan, write_tiny_model

from kvplan.calibrate.trials import DeviceIdentity
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.commands.printing import sweeps as sweep_output
from kvplan.commands.sweep import _finish
from kvplan.errors import KvplanError
from kvplan.runs.rows import empty_row
from kvplan.runs.setting_text import settings_text, shown_settings
from kvplan.runs.storage.store import free_directory
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.feasibility import quantization_notice
from kvplan.sweeps.progress import PlainProgress, line_of
from kvplan.sweeps.session import SweepOutcome, run_new_sweep
from kvplan.units import plural


def ran(tmp_path: Path, axes: dict[str, str], **options: Any) -> tuple[SweepOutcome, list[str]]:
    """A sweep with the fake worker, and the lines that its progress printed."""
    output = io.StringIO()
    plan = tiny_plan(tmp_path, axes, **options)
    outcome = run_new_sweep(plan, tmp_path / "run", PlainProgress(output), command="test", worker_command=FAKE_WORKER)
    return outcome, output.getvalue().splitlines()


def served(**values: Any) -> dict[str, Any]:
    return empty_row() | {
        "status": "ok", "gpu_memory_utilization": 0.9, "max_num_seqs": 1, "block_size": 16, "max_model_len": 1024,
        "run_number": 1, "output_throughput": 10.0, "kv_usage_max": 0.5, "num_clipped_prompts": 0, "device": "cpu",
    } | values  # fmt: skip


def test_swept_axes_are_visible_in_progress_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    axes = {"kv_cache_dtype": "auto,fp8", "max_num_batched_tokens": "64,128"}
    outcome, lines = ran(tmp_path, axes)
    for words in ("KV cache float32", "KV cache fp8", "64 tokens per step", "128 tokens per step"):
        assert sum(words in line for line in lines) == 2, words
    sweep_output.print_outcome(outcome, as_json=False)
    head = capsys.readouterr().out.splitlines()[1]
    assert "KV cache" in head and "batched tokens" in head
    sweep_output.print_dry_run(tiny_plan(tmp_path, axes), as_json=False)
    printed = capsys.readouterr().out
    assert "KV cache" in printed and "batched tokens" in printed and "fp8" in printed


def test_what_a_search_varies_is_visible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome, lines = ran(tmp_path, {}, search="max_concurrency", slo_seconds={"ttft": 1.0}, num_runs=1)
    assert any("5 in flight" in line for line in lines) and any("6 in flight" in line for line in lines)
    sweep_output.print_outcome(outcome, as_json=False)
    printed = capsys.readouterr().out.splitlines()
    assert "in flight" in printed[1]
    assert any("--max-num-seqs 5 " in line for line in printed)


def test_a_rerun_is_called_one_and_a_busy_machine_is_said() -> None:
    busy = line_of(served(other_cpu_pct=60.0), shown_settings(()))  # type: ignore[arg-type]
    assert "busy machine: other processes used 60 % of the CPU" in busy
    again = line_of(served(run_number=101, rerun_of=1), shown_settings(()))  # type: ignore[arg-type]
    assert "1 sequence, block 16, context 1,024, rerun of run 1: 10.0 tokens/s" in again
    assert ", run 2: " in line_of(served(run_number=2), shown_settings(()))  # type: ignore[arg-type]


def test_other_load_is_warned_of_in_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome, _ = ran(tmp_path, {"max_num_seqs": "1,2"})
    sweep_output.print_outcome(outcome, as_json=True)
    assert "warning" not in capsys.readouterr().err
    outcome.rows[1]["other_cpu_pct"] = 71.0
    sweep_output.print_outcome(outcome, as_json=True)
    (warning,) = capsys.readouterr().err.splitlines()
    number = outcome.rows[1]["trial_number"]
    assert warning.startswith(f"warning: the machine was busy during 1 of 2 served trials ({number}): ")
    assert "up to 71 % of the CPU." in warning


def test_a_sweep_in_which_nothing_was_served_fails_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvplan.reports.write_reports", lambda directory: [])
    outcome, _ = ran(tmp_path, {"gpu_memory_utilization": "0.01,0.02"})
    assert _finish(outcome, as_json=False) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first == (
        "No trial served its requests; all of them ended as oom_weights, weights exceed the budget. "
        "The weights do not fit."
    )


def test_a_model_larger_than_the_device_is_refused_with_both_sizes(tmp_path: Path, said_by: Callable[..., str]) -> None:
    model = write_tiny_model(tmp_path / "model")
    options = ["--model", str(model), "--device", "cpu", "--device-memory", "0.05MiB", "--out", str(tmp_path / "run")]
    for extra in ([], ["--dry-run"], ["--boundary", "max_model_len"]):
        error = said_by("sweep", *options, *extra, code=1)
        assert "weights of" in error and "take 147.50 KiB in float32, but the device has 51.20 KiB." in error
    assert not (tmp_path / "run").exists()


def test_weights_that_this_machine_could_hold_get_the_option_that_lets_it(
    tmp_path: Path, said_by: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_model(tmp_path / "model")
    options = ["sweep", "--model", str(model), "--device", "cpu", "--device-memory", "0.05MiB", "--dry-run"]
    assert "hint: --device-memory gives it more of the" in said_by(*options, code=1)
    monkeypatch.setattr("kvplan.sweeps.feasibility.available_memory_bytes", lambda: 1024**2)
    said = " ".join(said_by(*options, code=1).split())
    assert f"hint: `kvplan estimate {model}` shows which GPUs hold it" in said


def test_a_dry_run_says_why_a_context_will_be_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tiny_plan(tmp_path, {"max_model_len": "64,8k"})
    assert plan.spec.max_position_embeddings is not None
    sweep_output.print_dry_run(plan, as_json=False)
    limit = f"rejected_ctx (the model has {plan.spec.max_position_embeddings:,} positions)"
    assert [limit in line for line in capsys.readouterr().out.splitlines()[3:5]] == [False, True]


def test_weights_that_run_in_another_format_than_they_are_published_in_are_announced(tmp_path: Path) -> None:
    notice = quantization_notice(resolve_model("qwen3-32b-fp8"), "bfloat16")
    assert notice == "the weights are published in fp8; kvplan's engine runs them in bfloat16"
    assert not any("published" in text for text in tiny_plan(tmp_path).notices)


def test_clipped_requests_are_announced_counted_and_marked(tmp_path: Path) -> None:
    """Prompts of 4 to 12 tokens and answers of 2 to 6 do not all fit into 10."""
    plan = tiny_plan(tmp_path, {"max_model_len": "10,64"})
    (notice,) = [text for text in plan.notices if "clipped" in text]
    outcome, lines = ran(tmp_path / "other", {"max_model_len": "10,64"})
    by_context = {row["max_model_len"]: row["num_clipped_prompts"] for row in outcome.rows}
    assert by_context[10] > 0 and by_context[64] == 0
    assert f": {by_context[10]} at context 10;" in notice
    assert [f"{plural(by_context[10], 'request')} clipped" in line for line in lines if "tokens/s" in line].count(
        True
    ) == 1
    assert not any("clipped" in text for text in tiny_plan(tmp_path, {"max_model_len": "32,64"}).notices)
    (long,) = [text for text in tiny_plan(tmp_path, {"max_model_len": "2..12"}).notices if "clipped" in text]
    assert "at context 5, ... 6 more, " in long and "at context 12;" in long


def test_two_sweeps_of_the_same_second_get_directories_of_their_own(tmp_path: Path) -> None:
    wanted = tmp_path / "kvplan-sweep-gpt2-20260101-000000"
    made: list[Path] = []
    threads = [threading.Thread(target=lambda: made.append(free_directory(wanted))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in made) == [wanted.name, *(f"{wanted.name}-{number}" for number in (2, 3, 4))]


def test_a_default_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KvplanError, match="cannot be written"):
        free_directory(tmp_path / "file" / "run")


def test_one_is_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tiny_plan(tmp_path, {"max_num_seqs": "1"}, num_prompts=1)
    sweep_output.announce(plan, tmp_path)
    sweep_output.print_dry_run(plan, as_json=False)
    captured = capsys.readouterr()
    assert ": 1 trial of 1 request," in captured.err
    assert "\n1 trial, about" in captured.out
    assert DeviceIdentity("cpu", "CPU", 1, "float32").as_text() == "CPU, 1 core, float32"
    assert settings_text(TrialSettings(0.9, 1, 16, 64, 64)).startswith("utilization 0.9, 1 sequence,")


def test_lists_can_be_written_with_commas_or_spaces_or_by_repeating_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said_by: Callable[..., str]
) -> None:
    model = write_tiny_model(tmp_path / "model")
    common = ["sweep", "--model", str(model), "--device", "cpu", "--device-memory", "1GiB", "--dry-run", "--json"]

    def answer(*options: str) -> str:
        assert main([*common, *options]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    assert answer("--max-num-seqs", "1,2,4") == answer("--max-num-seqs", "1", "--max-num-seqs", "2,4")
    assert answer("--max-num-seqs", "1,2,4") == answer("--max-num-seqs", "1", "2", "4")
    assert "'banana' is not a number" in said_by(*common, "--max-num-seqs", "1", "banana")
    boundaries = ["max_model_len", "max_num_seqs"]
    assert answer("--boundary", ",".join(boundaries)) == answer(
        "--boundary", boundaries[0], "--boundary", boundaries[1]
    )
    search = ["--search", "max_concurrency=1..4"]
    assert answer("--slo", "ttft:500,tpot:50", *search) == answer("--slo", "ttft:500", "--slo", "tpot:50", *search)
    assert answer("--slo", "ttft:500,tpot:50", *search) == answer("--slo", "ttft:500", "tpot:50", *search)
