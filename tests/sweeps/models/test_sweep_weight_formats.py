"""Formats of weights and adapters as axes: every row's weights, slots and blocks are exactly the predicted ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from tiny_configs import llama_config

from kvplan.calibrate.trials import read_trial_sets
from kvplan.errors import KvplanError, UsageError
from kvplan.runs.answers.deploy import deployment_of
from kvplan.runs.columns import Row
from kvplan.runs.rows import empty_row, settings_of
from kvplan.runs.trials import TrialSettings
from kvplan.settings import WEIGHT_FORMATS
from kvplan.sweeps.forecast.under_load import UnderLoad
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import ADAPTERS_NOTICE, SweepPlan, make_plan
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import SweepOutcome, run_new_sweep
from kvplan.sweeps.worker.engine_host import EngineHost
from kvplan.sweeps.worker.trial import run_trial
from kvplan.sweeps.worker_host import EngineSource, make_order
from kvplan.units import GIB

LLAMA: dict[str, Any] = llama_config(
    hidden_size=128, intermediate_size=320, vocab_size=512, max_position_embeddings=256, torch_dtype="bfloat16"
)
REQUESTS: dict[str, Any] = {"num_prompts": 8, "input_len": "4..12", "output_len": "2..6", "rerun": False}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def plan(folder: Path, axes: dict[str, str], **options: Any) -> SweepPlan:
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA))
    common = {"device": "cpu", "device_memory": "1GiB", **REQUESTS, **options}
    return make_plan(SweepOptions(model=str(path), axes={"max_num_seqs": "4", **axes}, **common))


def run(folder: Path, axes: dict[str, str], **options: Any) -> SweepOutcome:
    return run_new_sweep(plan(folder, axes, **options), folder / "out", SilentProgress(), command="test")


def check(outcome: SweepOutcome) -> None:
    """Whatever started has what was predicted, and every outcome is the predicted one."""
    for row in outcome.rows:
        what = (row["quantization"], row["group_size"], row["max_loras"], row["max_lora_rank"], row["error"])
        assert row["status"] == row["predicted_status"], what
        assert row["weights_bytes"] == row["weights_bytes_predicted"], what
        assert row["adapter_bytes"] == row["adapter_bytes_predicted"], what
        assert (row["num_blocks_total"], row["block_bytes"]) == (row["num_blocks_predicted"],
                                                                row["block_bytes_predicted"]), what  # fmt: skip


def test_every_format_is_counted_as_predicted(tmp_path: Path) -> None:
    """With adapters and without, in one directory; formats without groups are there once."""
    axes = {"quantization": ",".join(("auto", "none", *WEIGHT_FORMATS)), "group_size": "32,128", "max_loras": "0,2"}
    outcome = run(tmp_path, axes | {"max_lora_rank": "8,16"}, load_format="none")
    check(outcome)
    settings = [settings_of(row) for row in outcome.rows]
    # 8 formats without groups of a size, 3 with two sizes; no adapters, or two ranks
    assert len(settings) == len(set(settings)) == (8 + 3 * 2) * 3
    assert {(each.max_loras, each.max_lora_rank) for each in settings} == {(0, None), (2, 8), (2, 16)}
    without = {row["weights_bytes"] for row in outcome.rows if not row["max_loras"]}
    assert len(without) > len(WEIGHT_FORMATS) // 2
    assert all((row["adapter_bytes"] or 0) > 0 for row in outcome.rows if row["max_loras"])
    assert all(row["status"] == "ok" and row["weights_origin"] == "counted" for row in outcome.rows)


def test_what_is_loaded_is_what_was_predicted(tmp_path: Path) -> None:
    """The worker loads dummies, rounds them, and serves adapters in turn; no speed was predicted."""
    outcome = run(tmp_path, {"quantization": "auto,gptq", "max_loras": "2"}, load_format="dummy")
    check(outcome)
    wide, rounded = sorted(outcome.rows, key=lambda row: -(row["weights_bytes"] or 0))
    assert (wide["quantization"], rounded["quantization"]) == ("auto", "gptq")
    for row in outcome.rows:
        assert row["output_throughput"] and row["completed"] == 8
        assert row["pred_output_throughput"] is None and row["prediction_origin"] is None
    with pytest.raises(KvplanError, match="weights in few bits, or adapters"):
        read_trial_sets([outcome.directory])


def test_a_pool_that_formats_decide(tmp_path: Path) -> None:
    """Half of the device is as much as the rounded weights need, and less than the wide ones do."""
    made = plan(tmp_path, {"quantization": "none,int4"}, load_format="none")
    memories = [made.predictor.memory(trial.settings) for trial in made.trials]
    small, large = sorted(memory.fixed_bytes + 8 * memory.block_bytes for memory in memories)
    share = (small + large) / 2 / GIB
    axes = {"quantization": "none,int4", "gpu_memory_utilization": f"{share:.6f}", "max_model_len": "64"}
    outcome = run(tmp_path, axes, load_format="none")
    check_started = {row["quantization"]: row["status"] for row in outcome.rows}
    assert check_started["int4"] in ("ok", "queued", "preempted")
    assert check_started["none"] in ("oom_weights", "oom_kv_init", "rejected_ctx")
    assert [row["status"] for row in outcome.rows] == [row["predicted_status"] for row in outcome.rows]


@pytest.mark.parametrize("load_format", ["dummy", "none"])
def test_prefixes_of_adapters_are_their_own(tmp_path: Path, load_format: str) -> None:
    """One prefix of 64 tokens, four adapters: each computes it once. As many run at once as was predicted."""
    options = {"num_prompts": 16, "prefix_len": "64", "max_concurrency": 1}
    made = plan(tmp_path, {"max_loras": "0,4"}, load_format=load_format, **options)
    source = EngineSource(made.options.model, load_format, 512)
    under, hits = UnderLoad(made.workload, made.predictor), {}
    for trial in made.trials:
        prepared = under.prepare(trial)
        order = make_order(prepared, made.device, source)
        result = run_trial(EngineHost(is_limited=True), order, lambda *_, **__: None)
        assert result.row["num_blocks_total"] == prepared.prediction.num_blocks
        assert result.row["meas_max_concurrency"] == prepared.prediction.max_concurrency
        hits[trial.settings.max_loras] = result.row["num_cached_tokens"]
    assert hits == {0: 15 * 64, 4: 12 * 64}


def test_adapters_are_announced(tmp_path: Path) -> None:
    assert ADAPTERS_NOTICE in plan(tmp_path, {"max_loras": "0,1"}).notices
    assert ADAPTERS_NOTICE not in plan(tmp_path, {"max_loras": "0"}).notices


@pytest.mark.parametrize(
    ("axes", "options", "sentence"),
    [
        ({"quantization": "gpt"}, {}, "Unknown --quantization 'gpt'."),
        ({"quantization": "fp8", "group_size": "64"}, {}, "--group-size 64 is for weights in groups"),
        ({"quantization": "awq", "group_size": "48"}, {}, "There are no kernels for groups of 48."),
        ({"max_loras": "0", "max_lora_rank": "8"}, {}, "--max-lora-rank is for adapters, and --max-loras is 0."),
        ({"max_loras": "-1"}, {}, "max_loras must be at least 0, got -1."),
        ({"quantization": "fp8"}, {"model_impl": "transformers"}, "would run through transformers"),
    ],
)
def test_what_does_not_exist_is_refused(
    tmp_path: Path, axes: dict[str, str], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((UsageError, KvplanError)) as caught:
        plan(tmp_path, axes, **options)
    assert sentence in caught.value.message


def test_a_state_has_no_product_that_adapters_correct() -> None:
    with pytest.raises(KvplanError, match="no layer that supports LoRA adapters"):
        make_plan(SweepOptions("mamba-2.8b", {"max_loras": "2"}, load_format="none", device_memory="80GiB"))


def test_commands_carry_formats_and_adapters() -> None:
    settings = TrialSettings(0.9, 4, 16, 64, 512, quantization="awq", group_size=64, max_loras=2)
    row = cast(Row, empty_row() | settings.as_json() | {"device": "cuda", "load_format": "dummy"})
    commands = deployment_of(row, "model").commands
    assert "'<awq build with groups of 64 of model>'" in commands["vllm"]
    assert "--max-loras 2 --max-lora-rank 16 --enable-lora" in commands["vllm"]
    assert "--quantization" not in commands["vllm"]
    assert 'quantization="awq", group_size=64, max_loras=2, max_lora_rank=16, enable_lora=True' in commands["kvplan"]
    commands = deployment_of(cast(Row, row | {"quantization": "fp8", "group_size": None}), "model").commands
    assert "vllm serve model --quantization fp8" in commands["vllm"]


def test_a_trial_without_the_new_axes_keeps_its_id() -> None:
    plain = TrialSettings(0.9, 4, 16, 256, 512)
    assert not {"quantization", "group_size", "max_loras", "max_lora_rank"} & set(plain.as_json())
    assert plain.engine_arguments() == plain.as_json()


def test_rounded_activations_are_in_the_rows(tmp_path: Path) -> None:
    outcome = run(tmp_path, {"quantization": "int4", "group_size": "32"}, load_format="dummy",
                  activation_quantization="int8")  # fmt: skip
    check(outcome)
    (row,) = outcome.rows
    assert (row["status"], row["activation_quantization"]) == ("ok", "int8")
    with pytest.raises(UsageError, match="Unknown --activation-quantization 'int4'"):
        SweepOptions(model="gpt2", activation_quantization="int4")
    with pytest.raises(UsageError, match="--activation-quantization is for the engine's own decoder"):
        SweepOptions(model="gpt2", activation_quantization="int8", model_impl="transformers")
