"""Sweeps that compute nothing (``--load-format none``): the real worker, counts, reports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest

from kvplan.calibrate.trials import read_trial_sets
from kvplan.errors import KvplanError, UsageError
from kvplan.reports import write_reports
from kvplan.reports.plots.occupancy import chosen_trials
from kvplan.reports.wording import run_phrase
from kvplan.runs.answers.best_settings import capacity_text
from kvplan.runs.columns import COLUMNS, Row
from kvplan.runs.storage.reader import load_run
from kvplan.sweeps.forecast.under_load import UnderLoad
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import SweepPlan, make_plan
from kvplan.sweeps.progress import SilentProgress, line_of
from kvplan.sweeps.rows import SweepIdentity, row_before
from kvplan.sweeps.session import SweepOutcome, resume_sweep, run_new_sweep
from kvplan.sweeps.worker.engine_host import EngineHost
from kvplan.sweeps.worker.trial import run_trial
from kvplan.sweeps.worker_host import EngineSource, make_order

LLAMA = "llama-3.1-8b"
COUNTED = {"completed", "failed", "total_input_tokens", "total_output_tokens", "max_concurrent_requests"}
SPEEDS = {column.name for column in COLUMNS if column.group in ("throughput", "latency")} - COUNTED


def plan(model: str = LLAMA, axes: dict[str, str] | None = None, **options: Any) -> SweepPlan:
    common = {"num_prompts": 24, "input_len": "40..200", "output_len": "8..40", **options}
    return make_plan(SweepOptions(model=model, load_format="none", axes=axes or {}, **common))


def run(directory: Path, model: str = LLAMA, axes: dict[str, str] | None = None, **options: Any) -> SweepOutcome:
    return run_new_sweep(plan(model, axes, **options), directory, SilentProgress(), command="test")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> SweepOutcome:
    """Utilizations from too little for the weights to enough for everything; three contexts."""
    axes = {"gpu_memory_utilization": utilizations(), "max_model_len": "256,1024,4096", "block_size": "16,32"}
    return run(tmp_path_factory.mktemp("counted") / "out", axes=axes, device_memory="20GiB", max_concurrency=16)


def utilizations() -> str:
    """Half of the weights; the weights alone; pools of 640 and of 1,200 tokens (the requests want 2,000); plenty."""
    made = plan(axes={"max_model_len": "4096"}, device_memory="20GiB")
    memory = made.predictor.memory(made.trials[0].settings)
    budgets = [memory.weight_bytes / 2, (memory.weight_bytes + memory.fixed_bytes) / 2]
    budgets += [memory.fixed_bytes + number * memory.block_bytes for number in (40.5, 75.5)]
    return ",".join(f"{budget / made.device.memory_bytes:.6f}" for budget in budgets) + ",0.9"


def test_every_outcome_is_there_and_was_predicted(outcome: SweepOutcome) -> None:
    assert {row["status"] for row in outcome.rows} >= {"ok", "preempted", "rejected_ctx", "oom_weights", "oom_kv_init"}
    for row in outcome.rows:
        assert row["status"] == row["predicted_status"], row["trial_number"]
        if row["num_blocks_total"] is not None:
            assert row["num_blocks_total"] == row["num_blocks_predicted"]
            assert row["block_bytes"] == row["block_bytes_predicted"]
            assert row["weights_bytes"] == 2 * 8_030_261_248
            assert row["meas_max_concurrency"] == row["pred_max_concurrency"]


def test_rows_have_counts_and_no_speeds(outcome: SweepOutcome) -> None:
    served = [row for row in outcome.rows if row["status"] in ("ok", "queued", "preempted")]
    assert served
    for row in served:
        assert [name for name in SPEEDS if row.get(name) is not None] == []
        assert row["completed"] == 24
        assert row["kv_usage_max"] and row["num_steps"] and row["frag_pct"]
        assert (row["load_format"], row["weights_origin"]) == ("none", "counted")
    nothing = ("pred_output_throughput", "pred_median_ttft_ms", "prediction_origin", "peak_allocated_bytes",
               "activation_peak_bytes", "other_cpu_pct", "usd_per_mtok_out")  # fmt: skip
    assert [name for row in served for name in nothing if row.get(name) is not None] == []


def test_a_line_of_progress_says_how_many_ran_at_once(outcome: SweepOutcome) -> None:
    best = outcome.summary["best"][0]
    row = next(row for row in outcome.rows if row["trial_id"] == best["trial_id"])
    assert "16 at once, peak KV usage" in line_of(row, outcome.shown)


def test_the_summary_names_the_most_at_once_and_the_boundaries(outcome: SweepOutcome) -> None:
    summary = outcome.summary
    assert summary["is_counted"]
    (best,) = summary["best"]
    assert (best["goal"], best["figures"]["max_running"], best["figures"]["output_throughput"]) == (
        "max_running",
        16,
        None,
    )
    assert best["settings"]["max_model_len"] == 4096
    assert list(best["commands"]) == ["vllm"]
    assert {boundary["kind"] for boundary in summary["boundaries"]} >= {"largest_max_model_len"}
    assert summary["predictions"]["outcomes_equal"] == len(outcome.rows)
    assert summary["predictions"]["output_throughput_median_error_pct"] is None
    assert summary["kv_waste"] is not None and summary["noise"]["num_noisy"] == 0


def test_the_page_and_the_pictures_say_it(outcome: SweepOutcome) -> None:
    written = {path.name for path in write_reports(outcome.directory)}
    assert written == {"outcomes.png", "occupancy.png", "predicted_vs_measured.png", "memory.png", "block_size.png",
                       "report.html"}  # fmt: skip
    page = (outcome.directory / "report.html").read_text()
    assert "Nothing was computed (load format none)" in page
    assert "counted CPU, nothing computed" in run_phrase(load_run(outcome.directory))  # in every picture's footer
    assert [why for why, _ in chosen_trials(load_run(outcome.directory))] == [
        "Best (most at once)", "Worst (most preemptions)"
    ]  # fmt: skip


def test_calibration_leaves_such_rows_out(outcome: SweepOutcome) -> None:
    with pytest.raises(KvplanError, match="nothing was computed"):
        read_trial_sets([outcome.directory])


def test_it_continues_with_the_same_account(outcome: SweepOutcome, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("manifest.json", "trials.jsonl"):
        (copy / name).write_bytes((outcome.directory / name).read_bytes())
    lines = (copy / "trials.jsonl").read_text().splitlines(keepends=True)
    (copy / "trials.jsonl").write_text("".join(lines[:-2]))
    again = resume_sweep(copy, SilentProgress())
    timed = {"started_at", "trial_seconds", "setup_seconds"}

    def counts(rows: list[Row]) -> list[dict[str, Any]]:
        ordered = sorted(rows, key=lambda row: row["trial_number"])
        return [{name: value for name, value in row.items() if name not in timed} for row in ordered]

    assert counts(again.rows) == counts(outcome.rows)


@pytest.mark.parametrize(
    "model", ["gemma-3-27b", "gpt-oss-20b", "qwen3.5-27b", "deepseek-v3", "mixtral-8x7b", "nemotron-3-nano-30b"]
)
def test_unlike_layers_at_full_size(model: str) -> None:
    """Windows, states, latents and experts: every outcome and every number of blocks as predicted, without a worker."""
    axes = {"gpu_memory_utilization": "0.5,0.8,0.82,0.85,0.9", "max_model_len": "2048,8192", "max_num_seqs": "32"}
    made = plan(model, axes, num_prompts=48, input_len="100..1200")
    identity = SweepIdentity("run", model, made.device, made.workload, made.load_format)
    source, host = EngineSource(model, made.load_format, made.spec.vocab_size), EngineHost()
    under, statuses = UnderLoad(made.workload, made.predictor), set()
    for trial in made.trials:
        prepared = under.prepare(trial)
        is_published = made.spec.quantization is not None
        order = make_order(prepared, made.device, source, has_published_weights=is_published)
        row = run_trial(host, order, lambda _: None).row
        expected = row_before(identity, prepared)
        assert row["status"] == expected["predicted_status"], (trial.settings, row.get("error"))
        statuses.add(row["status"])
        if "num_blocks_total" in row:
            assert row["num_blocks_total"] == expected["num_blocks_predicted"]
            assert row["block_bytes"] == expected["block_bytes_predicted"]
            assert row["meas_max_concurrency"] == expected["pred_max_concurrency"]
            assert (row["layout_waste_pct"] or 0.0) >= 0
    assert len(statuses) > 1


def test_a_gpu_by_name_need_not_be_here() -> None:
    device = plan(gpu="h100-sxm").device
    assert device.kind == "cuda"
    assert device.memory_bytes > 79 * 1024**3
    smaller = plan(gpu="h100-sxm", device_memory="40GiB").device
    assert (smaller.name, smaller.memory_bytes) == (device.name, 40 * 1024**3)


def test_eight_gpus_by_name_hold_the_pool_of_an_estimate(tmp_path: Path) -> None:
    """Latents, weights in 8-bit floats, eight ranks: a real worker counts what `kvplan estimate --gpu 8xh200` says."""
    outcome = run(tmp_path / "out", "deepseek-v3", gpu="8xh200", input_len="40", output_len="8")
    best = max(outcome.rows, key=lambda row: (row["gpu_memory_utilization"], row["max_model_len"]))
    assert (best["gpu_memory_utilization"], best["max_model_len"], best["tensor_parallel_size"]) == (0.92, 163_840, 8)
    assert best["kv_cache_tokens"] == best["kv_cache_tokens_predicted"] == best["kv_cache_tokens_vllm"] == 629_312
    assert {(row["status"], row["predicted_status"]) for row in outcome.rows} == {("ok", "ok")}
    assert {row["weights_origin"] for row in outcome.rows} == {"predicted"}
    assert len(outcome.rows) == 6
    (found,) = outcome.summary["best"]
    assert found["reason"] == (
        "the pool holds 3.8 sequences of 160k tokens (629,312 tokens), and this load reached 24 at once: "
        "it has 24 requests"
    )
    assert "--tensor-parallel-size 8" in found["commands"]["vllm"]


def test_parallel_sizes_are_those_of_the_gpus_that_were_named() -> None:
    pairs = plan("deepseek-v3", {"pipeline_parallel_size": "1,2"}, gpu="8xh200").trials
    sizes = {(each.settings.tensor_parallel_size, each.settings.pipeline_parallel_size) for each in pairs}
    assert sizes == {(8, 1), (4, 2)}
    with pytest.raises(UsageError, match="8 x h200 contradicts --tensor-parallel-size 4"):
        plan("deepseek-v3", {"tensor_parallel_size": "4"}, gpu="8xh200")
    (alone,) = plan(axes={"tensor_parallel_size": "2"}, gpu="h100-sxm").trials
    assert alone.settings.tensor_parallel_size == 2


def test_a_device_that_cannot_hold_the_weights_is_one_sentence() -> None:
    with pytest.raises(KvplanError, match=r"take 626\.92 GiB, more than the 576\.00 GiB") as caught:
        plan("deepseek-v3", device_memory="640GiB")
    assert caught.value.hint is not None and caught.value.hint.startswith("it needs 697 GiB at 0.9 for the weights")
    with pytest.raises(KvplanError, match=r"on each of 2 GPUs, more than") as caught:
        plan("deepseek-v3", gpu="2xh100-sxm")
    assert caught.value.hint is not None and "each GPU" in caught.value.hint


ROW: dict[str, Any] = {
    "kv_cache_tokens": 4_012_345, "max_model_len": 8192, "max_running": 21, "max_num_seqs": 64, "status": "ok",
    "max_concurrency": None, "num_prompts": 64, "max_num_batched_tokens": 2048, "num_preemptions": 0,
}  # fmt: skip
HOLDS = "the pool holds 489 sequences of 8k tokens (4,012,345 tokens), and this load reached "


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, HOLDS + "21 at once: 2,048 tokens a step held prompts back"),
        ({"max_running": 64}, HOLDS + "64 at once: max_num_seqs 64 seats no more"),
        ({"max_running": 16, "max_concurrency": 16}, HOLDS + "16 at once: it keeps 16 in flight"),
        ({"max_running": 40, "num_prompts": 40}, HOLDS + "40 at once: it has 40 requests"),
        ({"status": "queued"}, HOLDS + "21 at once: blocks ran out, so requests waited for them"),
        ({"status": "preempted", "num_preemptions": 130}, HOLDS + "21 at once: blocks ran out: 130 preemptions"),
        (
            {"kv_cache_tokens_vllm": 3_500_000},
            "the pool holds 489 sequences of 8k tokens (4,012,345 tokens; vLLM's own blocks, as it counts them, "
            "3,500,000: 427 sequences), and this load reached 21 at once: 2,048 tokens a step held prompts back",
        ),
        ({"kv_cache_tokens": None}, "this load reached 21 at once: 2,048 tokens a step held prompts back"),
    ],
)
def test_the_headline_says_what_held_a_load_back(changes: dict[str, Any], sentence: str) -> None:
    assert capacity_text(cast(Row, ROW | changes)) == sentence


def test_tokens_of_the_pool_are_measured(outcome: SweepOutcome) -> None:
    served = [row for row in outcome.rows if row["num_blocks_total"] is not None]
    assert served
    assert [row["kv_cache_tokens"] for row in served] == [row["num_blocks_total"] * row["block_size"] for row in served]
    assert [row["kv_cache_tokens_vllm"] for row in outcome.rows] == [None] * len(outcome.rows)


def test_short_requests_are_not_said_to_fill_the_room_of_the_longest_sequence() -> None:
    """Two of 96 tokens, where a sequence may have 512."""
    made = plan(num_prompts=2, input_len="64", output_len="32", axes={"max_num_seqs": "4"})
    (notice,) = [notice for notice in made.notices if "--device-memory sets it" in notice]
    (trial,) = made.predictions()
    room = re.search(r"room for max_model_len (\d+), of which the requests fill (\d+) % at most", notice)
    assert room is not None and int(room[1]) == made.trials[0].settings.max_model_len
    assert int(room[2]) == pytest.approx(100 * 2 * 96 / trial.kv_cache_tokens, abs=1)  # blocks are whole


def test_memory_that_nobody_chose_is_nearly_filled() -> None:
    made = plan()
    trial = max(made.predictions(), key=lambda trial: trial.num_blocks if trial.is_measured else 0)
    assert trial.status == "ok"
    assert any("so that the requests nearly fill it" in notice for notice in made.notices)
    assert 15 * 1024**3 < made.device.memory_bytes < 24 * 1024**3


def test_weights_of_a_quantized_checkpoint_are_the_planners(tmp_path: Path) -> None:
    config = json.loads(json.dumps(dict(plan().spec.raw_config)))
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    path = tmp_path / "model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config))
    served = run(tmp_path / "out", str(path), {"max_num_seqs": "8"}, device_memory="20GiB")
    (row,) = served.rows
    assert row["weights_origin"] == "predicted"
    assert 8e9 < (row["weights_bytes"] or 0) < 10e9
    assert row["num_blocks_total"] == row["num_blocks_predicted"]
    assert any("as predicted, not measured" in notice for notice in plan(str(path), device_memory="20GiB").notices)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slo_seconds": {"ttft": 1.0}}, "--slo cannot be used with --load-format none"),
        ({"search": "max_concurrency", "slo_seconds": {"ttft": 1.0}}, "--search cannot be used"),
        ({"request_rate": 4.0}, "--request-rate cannot be used"),
        ({"boundary": ("max_num_seqs",)}, "--boundary max_num_seqs cannot be used"),
        ({"gpu": "h100-sxm", "device": "cpu"}, "--gpu cannot be used with --device cpu"),
        ({"gpu": "h100-sxm", "load_format": "dummy"}, "--gpu names a device that is only counted"),
    ],
)
def test_what_needs_a_speed_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        SweepOptions(**{"model": LLAMA, "load_format": "none", **options})
    assert caught.value.hint


def test_a_context_boundary_is_searched(tmp_path: Path) -> None:
    axes = {"gpu_memory_utilization": utilizations().split(",")[2], "max_model_len": "64..1024+64"}
    found = run(tmp_path / "out", axes=axes, boundary=("max_model_len",), device_memory="20GiB")
    (boundary,) = [entry for entry in found.summary["boundaries"] if entry["kind"] == "largest_max_model_len"]
    assert boundary["starts"] == boundary["exact"] // 64 * 64
    assert boundary["fails"] == boundary["starts"] + 64
    assert len([row for row in found.rows if row["status"] != "skipped_oom_dominated"]) < 10


def test_each_format_of_the_kv_cache_takes_the_blocks_that_were_predicted(tmp_path: Path) -> None:
    """Bytes of a block: 2 per value in bfloat16, 1 in fp8, 1 and a float32 for each head in integers."""
    axes = {"kv_cache_dtype": "auto,fp8,int8_per_token_head", "gpu_memory_utilization": "0.85,0.9"}
    outcome = run(tmp_path / "out", axes=axes, device_memory="20GiB", max_concurrency=8)
    assert len(outcome.rows) == 6
    for row in outcome.rows:
        assert row["status"] == row["predicted_status"] == "ok"
        assert row["num_blocks_total"] == row["num_blocks_predicted"]
        assert row["block_bytes"] == row["block_bytes_predicted"]
    heads = 32 * 2 * 8 * 16
    wanted = {"bfloat16": heads * 128 * 2, "fp8": heads * 128, "int8_per_token_head": heads * (128 + 4)}
    assert {row["kv_cache_dtype"]: row["block_bytes"] for row in outcome.rows} == wanted
