"""Axes as they are written, the default design and its boundaries, a grid, and a forecast that counts blocks right."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from sweep_helpers import tiny_plan

from kvplan.commands.options.sweeps import FLAG_OPTIONS, AxisOptions
from kvplan.errors import UsageError
from kvplan.estimate.speed.steps.step_time import Speed, StepShape, StepTimes
from kvplan.list_words import with_flag_words
from kvplan.machine import device
from kvplan.machine.device import OpenedGpu
from kvplan.runs import trials
from kvplan.runs.columns import COLUMN_NAMES
from kvplan.runs.trials import Load, Trial, TrialSettings
from kvplan.settings import GROUP_SIZES, KNOBS
from kvplan.sweeps.axes import AXES, Axis, parse_values
from kvplan.sweeps.forecast.prediction import forecast_trial
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import SweepPlan, make_plan
from kvplan.units import GIB, MIB
from kvplan.workload.requests import RequestSpec

COST = StepTimes(StepShape(0, 0, 0, 0, 0, 0, 0, 0), Speed(1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0))  # a second a step


@pytest.fixture(scope="module", params=["4GiB", None])
def default_plan(request: pytest.FixtureRequest) -> SweepPlan:
    return make_plan(SweepOptions(model="gpt2", device="cpu", device_memory=request.param))


def peak_usage(plan: SweepPlan) -> float:
    """Used share of the pool in the shared point of both planes, at its predicted peak."""
    (trial,) = [trial for trial in plan.trials if len(trial.planes) == 2]
    tokens = sum(-(-(r.num_prompt_tokens + r.num_output_tokens) // 16) for r in plan.predictor.requests)
    return tokens / plan.predictor.memory(trial.settings).num_blocks


def test_the_default_sweep_does_not_leave_its_pool_empty() -> None:
    """With 4 GiB the requests filled 4 % of the pool at utilization 0.9, and no setting of memory meant anything."""
    plan = make_plan(SweepOptions(model="gpt2", device="cpu"))
    assert 0.6 < peak_usage(plan) <= 1.0
    assert "--device-memory sets it" in plan.notices[0] and plan.device.notice == plan.notices[0]
    chosen = make_plan(SweepOptions(model="gpt2", device="cpu", device_memory="4GiB"))
    assert chosen.device.memory_bytes == 4 * 1024**3 and peak_usage(chosen) < 0.05


def test_a_sweep_whose_settings_were_given_keeps_the_usual_memory() -> None:
    default = make_plan(SweepOptions(model="gpt2", device="cpu")).device.memory_bytes
    given = make_plan(SweepOptions(model="gpt2", device="cpu", axes={"max_num_seqs": "4"})).device.memory_bytes
    assert given > default


def test_the_default_design_expects_every_outcome(default_plan: SweepPlan) -> None:
    statuses = [prediction.status for prediction in default_plan.predictions()]
    assert {"ok", "preempted", "oom_weights", "oom_kv_init", "rejected_ctx"} <= set(statuses)
    assert len(set(default_plan.trials)) == len(default_plan.trials)
    assert {plane for trial in default_plan.trials for plane in trial.planes} == {"throughput", "memory"}
    assert sum(len(trial.planes) == 2 for trial in default_plan.trials) == 1


def test_a_utilization_lies_on_both_sides_of_every_context_boundary(default_plan: SweepPlan) -> None:
    outcomes: dict[int, set[bool]] = {}
    for trial, prediction in zip(default_plan.trials, default_plan.predictions(), strict=True):
        if "memory" in trial.planes:
            outcomes.setdefault(trial.settings.max_model_len, set()).add(prediction.is_measured)
    assert len(outcomes) == 3
    assert all(both == {True, False} for both in outcomes.values())


def plan_on(gpu: OpenedGpu, monkeypatch: pytest.MonkeyPatch, shard: str | None = None) -> SweepPlan:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device, "_torch_is_cpu_build", lambda: False)
    return make_plan(SweepOptions(model="gpt2", device="cuda", shard=shard), ask=lambda: gpu)


def test_a_gpu_s_boundaries_are_planned_with_what_its_worker_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Context and other processes take more than the 640 MiB that are usual: an engine would have no pool at all."""
    plan = plan_on(OpenedGpu("NVIDIA H100 80GB HBM3", 79 * GIB, 1044 * MIB, "ab-cd"), monkeypatch)
    assert (plan.device.kind, plan.device.uuid, plan.device.memory_bytes) == ("cuda", "ab-cd", 79 * GIB)
    pools = [plan.predictor.own_memory(trial.settings) for trial in plan.trials]
    assert {memory.overhead_bytes for memory in pools} == {1044 * MIB}
    usual = plan_on(OpenedGpu("NVIDIA H100 80GB HBM3", 79 * GIB, 0), monkeypatch)
    usual_pools = [usual.predictor.own_memory(trial.settings) for trial in usual.trials]
    assert {memory.overhead_bytes for memory in usual_pools} == {640 * MIB}
    assert [memory.outcome for memory in pools] == [memory.outcome for memory in usual_pools]
    planned_as_usual = [plan.predictor.own_memory(trial.settings) for trial in usual.trials]
    lost = sum(ours.outcome != theirs.outcome for ours, theirs in zip(planned_as_usual, usual_pools, strict=True))
    assert lost > 0, "which were outcomes that the sweep would have missed"


def test_shards_make_the_same_plan_whatever_other_processes_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [
        plan_on(OpenedGpu("NVIDIA H100 80GB HBM3", 79 * GIB, overhead * MIB), monkeypatch, shard="1/2").shard
        for overhead in (640, 900, 1044)
    ]
    assert plans[0] is not None
    assert plans[0] == plans[1] == plans[2]


def test_the_largest_batch_runs_first_because_it_is_profiled_once(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, {"max_num_seqs": "1..8*2", "gpu_memory_utilization": "0.01,0.9"})
    assert [trial.settings.max_num_seqs for trial in plan.trials] == [8, 4, 2, 1, 8, 4, 2, 1]
    assert [trial.settings.gpu_memory_utilization for trial in plan.trials] == [0.9] * 4 + [0.01] * 4


def test_a_grid_is_the_product_of_its_axes_and_runs_repeat_it(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, {"max_num_seqs": "1,2", "block_size": "4,8,16"}, num_runs=2)
    assert len(plan.trials) == 12
    assert len({trial.trial_id for trial in plan.trials}) == 12
    assert [trial.run_number for trial in plan.trials] == [1] * 6 + [2] * 6


def test_too_large_a_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="more than"):
        tiny_plan(tmp_path, {"max_num_seqs": "1..100", "block_size": "1..32", "max_model_len": "8,16"})


def test_a_trial_comes_back_from_the_manifest() -> None:
    trial = Trial(3, TrialSettings(0.3, 4, 16, 512, 2048, dtype="float32"), 2, ("throughput", "memory"))
    assert Trial.from_json(trial.as_json()) == trial
    assert Trial.from_json(trial.as_json()).trial_id == trial.trial_id


def settings(**changes: int) -> TrialSettings:
    return TrialSettings(0.9, 8, 4, 64, max_num_batched_tokens=64).with_changes(**changes)


def test_a_forecast_worked_out_by_hand() -> None:
    # Two sequences of 6 prompt and 3 output tokens, blocks of 4, room for both: one prefill step, two decode steps.
    requests = [RequestSpec(index, 6, 3) for index in range(2)]
    forecast = forecast_trial(requests, settings(), num_blocks=16, cost=COST)
    assert (forecast.status, forecast.num_steps, forecast.max_running) == ("ok", 3, 2)
    assert forecast.seconds == pytest.approx(3.0)
    assert forecast.num_output_tokens == 6


def test_a_forecast_of_a_pool_that_is_too_small_for_two_at_once() -> None:
    # 3 blocks of 4: the first takes 2 of them, so the second (2 blocks) must wait for it to end.
    requests = [RequestSpec(index, 6, 3) for index in range(2)]
    forecast = forecast_trial(requests, settings(), num_blocks=3, cost=COST)
    assert (forecast.status, forecast.num_steps, forecast.max_running) == ("queued", 6, 1)


def test_a_forecast_of_preemption() -> None:
    # 4 blocks: both prompts fit (2 + 2); when the first needs its third block the second is preempted and comes back.
    requests = [RequestSpec(index, 8, 4) for index in range(2)]
    forecast = forecast_trial(requests, settings(), num_blocks=4, cost=COST)
    assert forecast.status == "preempted"
    assert forecast.num_preemptions == 1
    assert forecast.num_output_tokens == 8


def test_a_forecast_of_a_closed_loop_and_of_late_arrivals() -> None:
    requests = [RequestSpec(index, 4, 2) for index in range(3)]
    one_by_one = forecast_trial(requests, settings(), num_blocks=16, cost=COST, max_concurrency=1)
    assert (one_by_one.max_running, one_by_one.num_steps) == (1, 6)
    late = forecast_trial([RequestSpec(0, 4, 2), RequestSpec(1, 4, 2, 100.0)], settings(), num_blocks=16, cost=COST)
    assert late.seconds == pytest.approx(102.0)


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("gpu_memory_utilization", "0.3,0.6,0.9", (0.3, 0.6, 0.9)),
        ("gpu_memory_utilization", "0.3..0.9+0.1", (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
        ("gpu_memory_utilization", ".5..1+.25", (0.5, 0.75, 1.0)),
        ("max_num_seqs", "1..64*2", (1, 2, 4, 8, 16, 32, 64)),
        ("max_num_seqs", "1..50*2", (1, 2, 4, 8, 16, 32)),
        ("max_num_seqs", "3..5", (3, 4, 5)),
        ("max_num_seqs", "8, 4,8..32*2", (8, 4, 16, 32)),
        ("max_model_len", "256..1024+256", (256, 512, 768, 1024)),
        ("max_model_len", "4k..32k*2", (4096, 8192, 16384, 32768)),
        ("max_model_len", "1k", (1024,)),
        ("block_size", "16", (16,)),
        ("dtype", "float32,bfloat16", ("float32", "bfloat16")),
        ("enable_expert_parallel", "false,true", (False, True)),
    ],
)
def test_lists_and_ranges(name: str, text: str, values: tuple) -> None:
    assert parse_values(AXES[name], text) == values


@pytest.mark.parametrize(
    "axis", [each for each in AXES.values() if each.kind not in ("name", "flag")], ids=lambda axis: axis.name
)
def test_examples_are_values(axis: Axis) -> None:
    """Each of the two examples that help and hints give, and their groups have kernels."""
    for example in axis.example.split(" or "):
        values = parse_values(axis, example)
        assert len(values) > 1
        assert axis.name != "group_size" or set(values) <= set(GROUP_SIZES)


@pytest.mark.parametrize(
    ("name", "text", "part_of_message"),
    [
        ("gpu_memory_utilization", "1.7", "gpu_memory_utilization must be above 0 and at most 1, got 1.7"),
        ("gpu_memory_utilization", "0", "above 0"),
        ("gpu_memory_utilization", "nan", "not a number"),
        ("gpu_memory_utilization", "0.1..0.5", "has no step"),
        ("block_size", "0", "block_size must be at least 1, got 0"),
        ("block_size", "banana", "--block-size 'banana' is not a number"),
        ("block_size", "8..4", "range must be ascending"),
        ("block_size", "2.5", "whole number"),
        ("max_num_seqs", "-3", "at least 1"),
        ("max_num_seqs", "1..8*1", "never reaches the end"),
        ("max_num_seqs", "1..8+0", "never reaches the end"),
        ("max_num_seqs", "1,,2", "empty value"),
        ("max_num_seqs", "1..1000000", "more than 1000"),
        ("max_num_seqs", "1..", "not a range"),
        ("max_num_seqs", "1e1000000", "--max-num-seqs '1e1000000' is more than 1,152,921,504,606,846,976"),
        ("max_num_seqs", "-1e1000000", "is more than"),
        ("max_model_len", "1e400", "is more than"),
        ("gpu_memory_utilization", "1e-400", "above 0"),
        ("dtype", "float8", "Unknown --dtype 'float8'"),
        ("enable_expert_parallel", "yes", "--enable-expert-parallel 'yes' is neither true nor false"),
    ],
)
def test_one_sentence_and_a_hint(name: str, text: str, part_of_message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_values(AXES[name], text)
    assert part_of_message in raised.value.message
    assert raised.value.message.endswith(".")
    assert raised.value.hint


def test_every_setting_declared_as_an_axis_has_an_option_and_a_column() -> None:
    assert list(AXES) == [name for name, knob in KNOBS.items() if knob.sweep_axis is not None]
    assert set(AXES) <= set(COLUMN_NAMES)
    assert [option.name for option in fields(AxisOptions)] == list(AXES)


def test_flags_need_no_value() -> None:
    flag = "--enable-expert-parallel"
    assert {flag, "--ep"} == FLAG_OPTIONS
    for words, meant in (
        ([flag, "--tp", "2"], [flag, "true", "--tp", "2"]),
        (["--tp", "2", "--ep"], ["--tp", "2", "--ep", "true"]),
        ([flag, "gpt2"], [flag, "true", "gpt2"]),
        ([flag, "false,true", "--pp", "2"], [flag, "false,true", "--pp", "2"]),
        (["--", flag], ["--", flag]),
    ):
        assert with_flag_words(words, FLAG_OPTIONS) == meant


def test_weights_are_loaded_for_ranks_stages_and_whole_experts() -> None:
    settings = TrialSettings(0.9, 4, 16, 256, 512)
    changes = ({}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}, {"enable_expert_parallel": True})
    keys = [settings.with_changes(**change).load_key for change in changes]
    assert len(set(keys)) == len(keys) and keys[0] == replace(settings, max_num_seqs=8).load_key
    assert sorted(keys)[0] == keys[0]
    assert settings.with_changes(**changes[3]).engine_arguments()["enable_expert_parallel"] is True


def test_ids_of_trials_are_those_of_older_run_directories() -> None:
    old = [
        Trial(3, TrialSettings(0.9, 4, 16, 256, 512), 2),
        Trial(3, TrialSettings(0.5, 4, 16, 256, 2048, dtype="float32"), 2, load=Load(2.5, 4)),
    ]
    assert [trial.trial_id for trial in old] == ["dcd05aa55fea", "c60d16b13804"]


def test_a_setting_that_is_not_an_axis_of_every_sweep_counts_only_if_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(1, TrialSettings(0.9, 4, 16, 256, 512))
    eager = replace(trial, settings=replace(trial.settings, enforce_eager=True))
    known_id = trial.trial_id
    monkeypatch.setattr(trials, "SETTING_NAMES", (*trials.SETTING_NAMES, "enforce_eager"))
    assert (trial.trial_id, "enforce_eager" in trial.settings.as_json()) == (known_id, False)
    assert eager.trial_id != known_id
    assert eager.settings.as_json()["enforce_eager"] is True
