"""Sweeps of models with states, with shared layers, through transformers, and over ranks."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from sweep_helpers import tiny_plan
from tiny_configs import own_config

from kvplan.calibrate.trials import read_trial_sets
from kvplan.catalog.architectures import architectures
from kvplan.errors import KvplanError, UsageError
from kvplan.reports.findings import shared_sentence
from kvplan.runs.answers.summary import prediction_errors
from kvplan.runs.rows import empty_row
from kvplan.runs.storage.reader import load_run
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.feasibility import expected_implementation, refuse_architecture
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import SHARED_NOTICE, make_plan
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import run_new_sweep
from kvplan.sweeps.worker.engine_host import EngineHost
from kvplan.sweeps.worker.protocol import TrialOrder
from kvplan.sweeps.worker.trial import run_trial


@pytest.mark.slow
def test_outcome_and_blocks_are_right_in_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "config.json").write_text(json.dumps(own_config("qwen 3.5")), encoding="utf-8")
    axes = {
        "gpu_memory_utilization": "0.001,0.9",
        "block_size": "3,16",
        "max_num_seqs": "4",
        "max_model_len": "64",
        "dtype": "float32",
    }
    options: dict[str, Any] = {
        "num_prompts": 6,
        "input_len": "20..40",
        "output_len": "4",
        "rerun": False,
        "trial_timeout": 600.0,
    }
    plan = make_plan(
        SweepOptions(
            model=str(tmp_path / "config.json"),
            axes=axes,
            device="cpu",
            device_memory="512MiB",
            **options,
        )
    )
    rows = run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="test").rows
    assert sorted(row["status"] for row in rows) == ["ok", "ok", "oom_kv_init", "oom_kv_init"]
    for row in rows:
        assert row["status"] == row["predicted_status"]
        if row["status"] == "ok":
            assert row["block_bytes"] == row["block_bytes_predicted"]
            assert row["num_blocks_total"] == row["num_blocks_predicted"]
            assert row["completed"] == 6


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


def test_auto_is_native_wherever_the_decoder_can() -> None:
    assert expected_implementation("LlamaForCausalLM") == "native"
    assert expected_implementation("LlamaForCausalLM", model_impl="transformers") == "transformers"
    assert expected_implementation("LlamaForCausalLM", (), model_impl="auto") == "transformers"
    assert expected_implementation("LlamaForCausalLM", (), model_impl="native") is None


@pytest.mark.parametrize(("model_impl", "sentence"), [("auto", "does not support"), ("transformers", "does not run")])
def test_what_nothing_computes_is_refused(model_impl: str, sentence: str) -> None:
    row = architectures()["T5ForConditionalGeneration"]
    assert not row.native and row.transformers is None
    with pytest.raises(KvplanError, match=sentence):
        refuse_architecture("T5ForConditionalGeneration", model_impl=model_impl)


def test_transformers_computes_whole_models() -> None:
    for options in ({"load_format": "none"}, {"load_format": "dummy", "dummy_layers": "shared"}):
        with pytest.raises(UsageError, match="computes whole models"):
            SweepOptions("gpt2", model_impl="transformers", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Unknown --model-impl 'vllm'"):
        SweepOptions("gpt2", model_impl="vllm")


def test_rows_without_a_prediction_are_not_compared_with_one() -> None:
    measured = empty_row()
    measured.update(status="ok", num_blocks_total=70, block_bytes=16, block_bytes_predicted=16, output_throughput=5.0)
    predicted = measured.copy()
    predicted.update(predicted_status="ok", num_blocks_predicted=70, pred_output_throughput=4.0)
    errors = prediction_errors([measured, predicted])
    assert errors["num_compared"] == errors["num_blocks_equal"] == errors["num_outcomes_compared"] == 1
    assert errors["output_throughput_median_error_pct"] == pytest.approx(20.0)


SETTINGS = TrialSettings(
    gpu_memory_utilization=0.9,
    max_num_seqs=4,
    block_size=16,
    max_model_len=64,
    max_num_batched_tokens=64,
    dtype="float32",
    tensor_parallel_size=2,
)


@pytest.mark.xdist_group("ranks")
def test_a_rank_killed_while_a_trial_is_served_is_a_row_of_its_own_status(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, num_prompts=6, output_len="12", seed=5)
    model = str(tmp_path / "tiny-model" / "config.json")
    engine = {"model": model, "device": "cpu", "device_memory": 1 << 28, "load_format": "dummy", "seed": 5}
    order = TrialOrder("first", engine, SETTINGS.engine_arguments(), plan.predictor.requests, 3, 5, 128)
    host = EngineHost(is_limited=True)  # this process keeps its memory limit
    whole = run_trial(host, order, lambda *_, **__: None)
    assert whole.row["status"] == "ok"
    predicted = plan.predictor.own_memory(SETTINGS)
    assert whole.row["weights_bytes"] == predicted.weight_bytes
    assert whole.row["block_bytes"] == predicted.block_bytes

    assert host.engine is not None and host.engine.ranks is not None
    (rank,) = host.engine.ranks.pids

    def kill_when_serving(message: Any) -> None:
        if message["type"] == "stage" and message["stage"] == "serving":
            os.kill(rank, signal.SIGKILL)

    result = run_trial(host, order, kill_when_serving)
    assert result.row["status"] == "rank_died"
    assert result.row["error"] == "Rank 1 of 2 was ended by SIGKILL."
    assert not result.worker_usable, "the next trial needs a worker of its own"
    assert not Path(f"/proc/{rank}").exists()
