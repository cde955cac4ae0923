"""What a run directory may hold: values of the declared shapes, and rows of earlier versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest

from kvplan.errors import KvplanError
from kvplan.runs.directory import TRIAL_SCHEMA, read_trials
from kvplan.runs.rows import empty_row, settings_of
from kvplan.runs.shape import ShapeError, check_shape
from kvplan.runs.trials import Trial, TrialSettings
from kvplan.sweeps.options import SweepOptions


class Inner(TypedDict, total=False):
    number: int
    words: list[str]


class Outer(TypedDict, total=False):
    inner: Inner | None
    share: float
    word: Literal["a", "b"]
    any: dict[str, Any]


@pytest.mark.parametrize(
    "value",
    [{}, {"inner": None}, {"inner": {"number": 3.0, "words": []}, "share": 1, "word": "a"}, {"later": object()},
     {"any": {"x": [None, {}]}}],
)  # fmt: skip
def test_what_has_the_shape_passes(value: object) -> None:
    check_shape(value, Outer, "it")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([], "it is \\[\\]"),
        ({"inner": []}, "it.inner is \\[\\]"),
        ({"inner": {"number": "3"}}, "it.inner.number is '3'"),
        ({"inner": {"number": True}}, "it.inner.number is True"),
        ({"inner": {"number": 3.5}}, "it.inner.number is 3.5"),
        ({"inner": {"number": 10**400}}, "it.inner.number is a number too large"),
        ({"inner": {"words": ["a", 1]}}, "it.inner.words\\[1\\] is 1"),
        ({"share": float("nan")}, "it.share is nan"),
        ({"share": float("inf")}, "it.share is inf"),
        ({"word": "c"}, "it.word is 'c'"),
        ({"later": [float("nan")]}, "it.later\\[0\\] is nan"),
        ({"any": {"x": {"y": float("inf")}}}, "it.any.x.y is inf"),
    ],
)
def test_what_has_not_is_named(value: object, sentence: str) -> None:
    with pytest.raises(ShapeError, match=sentence):
        check_shape(value, Outer, "it")


def _stored(path: Path, row: dict[str, Any]) -> int:
    path.write_text(json.dumps({"schema": TRIAL_SCHEMA, "row": row, "series": None}) + "\n")
    return len(read_trials(path).records)


def test_a_record_with_a_cell_that_cannot_be_is_damaged(tmp_path: Path) -> None:
    assert _stored(tmp_path / "t", {"trial_id": "a", "num_prompts": 4, "burstiness": None, "of_later": []}) == 1
    assert _stored(tmp_path / "t", {"trial_id": "a", "num_prompts": 10**400}) == 0
    assert _stored(tmp_path / "t", {"trial_id": ["a"]}) == 0
    assert _stored(tmp_path / "t", {"trial_id": "a", "of_later": float("inf")}) == 0


@pytest.mark.parametrize(
    ("row", "engine"),
    [({}, "kvplan"), ({"engine": "vllm"}, "vllm"), ({"url": "http://x"}, None),
     ({"url": "http://x", "engine": "sglang"}, "sglang")],
)  # fmt: skip
def test_rows_of_kvplans_own_engine_name_it_in_old_directories_too(
    row: dict[str, Any], engine: str | None, tmp_path: Path
) -> None:
    assert _stored(tmp_path / "t", {"trial_id": "a"} | row) == 1
    assert read_trials(tmp_path / "t").records[0]["row"]["engine"] == engine


def test_settings_that_a_server_does_not_tell_are_not_known() -> None:
    found = settings_of(empty_row() | {"max_model_len": 512, "block_size": 16})
    assert not found.is_known
    assert found.known_values() == {"max_model_len": 512, "block_size": 16, "dtype": "auto", "kv_cache_dtype": "auto"}
    assert TrialSettings.of_known(found.known_values()) == found


@pytest.mark.parametrize(
    "record",
    [{}, {"number": 1, "settings": {}, "run_number": 1, "planes": []},
     {"number": 1, "settings": {"x": 1}, "run_number": 1, "planes": []}],
)  # fmt: skip
def test_a_trial_that_is_none(record: Any) -> None:
    with pytest.raises(KvplanError, match=r"lacks|has"):
        Trial.from_json(record)


@pytest.mark.parametrize(
    "changes",
    [{"num_prompts": "4"}, {"axes": [1]}, {"engine_args": "x"}, {"slo_ms": {"ttft": "1"}}, {"request_rate": []}],
)  # fmt: skip
def test_options_that_no_sweep_wrote(changes: dict[str, Any]) -> None:
    with pytest.raises(KvplanError, match="options cannot be read"):
        SweepOptions.from_json(SweepOptions(model="gpt2").as_json() | changes)
