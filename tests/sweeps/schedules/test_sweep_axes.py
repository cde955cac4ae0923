"""How axes are written: every form that works, and one clear sentence for every form that does not."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from kvplan.commands.options.sweeps import FLAG_OPTIONS, AxisOptions
from kvplan.errors import UsageError
from kvplan.list_words import with_flag_words
from kvplan.runs import trials
from kvplan.runs.columns import COLUMN_NAMES
from kvplan.runs.trials import Load, Trial, TrialSettings
from kvplan.settings import GROUP_SIZES, KNOBS
from kvplan.sweeps.axes import AXES, Axis, parse_values


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
