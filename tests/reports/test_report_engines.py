"""Runs of several engines side by side: what they are matched by, what is said of them, and every format."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import report_helpers
from report_helpers import sample_directory, write_trials

from kvplan.errors import KvplanError
from kvplan.reports.pictures import draw_side_by_side
from kvplan.reports.side_by_side import SideBySide, set_side_by_side, side_by_side_document, side_sentences
from kvplan.runs.storage.reader import load_run

record = partial(report_helpers.record, model_id="smollm2-135m", device_name="a CPU")


def three_engines(directory: Path) -> tuple[Path, Path, Path]:
    own = [record(1, 2, 100.0), record(2, 4, 180.0), record(3, 8, 300.0)]
    other = {"engine": "llamacpp", "engine_version": "b11434", "block_size": 1}
    slots = [
        record(1, 2, 50.0, kv_cache_tokens=1024, kv_cache_tokens_predicted=1024, **other),
        record(2, 4, 45.0, kv_cache_tokens=2048, kv_cache_tokens_predicted=2048, **other),
        record(3, 16, 70.0, kv_cache_tokens=8192, kv_cache_tokens_predicted=8192, **other),
    ]
    third = {"engine": "vllm", "engine_version": "0.32.0", "block_size": 128}
    paged = [
        record(1, 2, 80.0, kv_cache_tokens=8064, kv_cache_tokens_predicted=8192, **third),
        record(2, 4, None, kv_cache_tokens_predicted=8192, **third),
    ]
    names = ("own", "slots", "paged")
    made = [write_trials(directory / name, rows) for name, rows in zip(names, (own, slots, paged), strict=True)]
    return made[0], made[1], made[2]


def compared(directory: Path) -> SideBySide:
    return set_side_by_side([load_run(path) for path in three_engines(directory)])


def test_runs_are_matched_by_what_any_of_them_varied(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert [side.label for side in found.sides] == ["kvplan", "llamacpp b11434", "vllm 0.32.0"]
    assert found.settings == ("max_num_seqs",)
    assert list(found.table["max_num_seqs"]) == [2, 4]
    assert found.num_alone == (1, 1, 0)
    blocks = next(each for each in found.circumstances if each.name == "block_size")
    assert blocks.values == ("16", "1", "128")
    assert list(found.ratios(1)) == pytest.approx([0.5, 0.25])
    assert list(found.ratios(2)) == pytest.approx([0.8])


def test_a_small_ratio_is_said_as_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SideBySide, "ratios", lambda *_: pd.Series([1 / 40, 1 / 50]))
    said = side_sentences(compared(tmp_path))[0]
    assert said.startswith(
        "Output throughput of llamacpp b11434 is 1/44 times that of kvplan (median of 2 settings that both served; "
        "range 1/50"
    )


def test_what_is_said_of_them(tmp_path: Path) -> None:
    sentences = side_sentences(compared(tmp_path))
    assert sentences == [
        "Output throughput of llamacpp b11434 is 0.38 times that of kvplan "
        "(median of 2 settings that both served; range 0.25 to 0.50).",
        "Median TPOT of llamacpp b11434 is 3.00 times that of kvplan "
        "(median of 2 settings that both served; range 2.00 to 4.00).",
        "Output throughput of vllm 0.32.0 is 0.80 times that of kvplan (the one setting that both served).",
        "Median TPOT of vllm 0.32.0 is 1.25 times that of kvplan (the one setting that both served).",
        "llamacpp b11434 held as many KV tokens as predicted in all of 3 trials.",
        "vllm 0.32.0 held as many KV tokens as predicted in 0 of 1 trial; at most 1.6 % off.",
        "kvplan served 2 of 2 settings that others tried too.",
        "llamacpp b11434 served 2 of 2 settings that others tried too.",
        "vllm 0.32.0 served 1 of 2 settings that others tried too.",
    ]


def test_the_document_has_every_shared_setting(tmp_path: Path) -> None:
    document = side_by_side_document(compared(tmp_path))
    assert document["schema"] == "kvplan.side_by_side/1"
    row = document["rows"][1]
    assert row["max_num_seqs"] == 4
    assert row["vllm 0.32.0"]["status"] == "oom_kv_init"
    assert row["vllm 0.32.0"]["output_throughput"] is None
    assert row["llamacpp b11434"]["kv_cache_tokens"] == 2048


def test_two_runs_of_one_engine_are_called_by_their_directories(tmp_path: Path) -> None:
    own, _, _ = three_engines(tmp_path)
    again = write_trials(tmp_path / "again", [record(1, 2, 110.0)])
    third = write_trials(tmp_path / "third", [record(1, 2, 120.0)])
    found = set_side_by_side([load_run(path) for path in (own, again, third)])
    assert [side.label for side in found.sides] == ["kvplan (own)", "kvplan (again)", "kvplan (third)"]
    assert len(found.table) == 1


def test_runs_that_varied_nothing_share_their_one_setting(tmp_path: Path) -> None:
    rows = (record(1, 2, 100.0), record(1, 4, 50.0, engine="vllm"))
    runs = [load_run(write_trials(tmp_path / str(place), [row])) for place, row in enumerate(rows)]
    found = set_side_by_side(runs)
    assert (found.settings, len(found.table)) == ((), 1)
    assert [each.name for each in found.circumstances] == ["max_num_seqs"]


def test_runs_without_a_shared_setting_are_refused(tmp_path: Path) -> None:
    rows = ([record(1, 2, 100.0), record(2, 4, 1.0)], [record(1, 8, 50.0, engine="vllm")])
    runs = [load_run(write_trials(tmp_path / str(place), each)) for place, each in enumerate(rows)]
    with pytest.raises(KvplanError, match="No setting was tried in two of these runs"):
        set_side_by_side(runs)


def test_the_picture_names_engines_and_failures(tmp_path: Path) -> None:
    picture = draw_side_by_side(compared(tmp_path), with_narrow=True)
    assert picture is not None and picture.narrow_png is not None
    assert picture.finding == (
        "Output throughput over that of kvplan: 0.38 (llamacpp b11434), 0.80 (vllm 0.32.0); median of "
        "2 settings that both served"
    )


def test_nothing_served_draws_nothing(tmp_path: Path) -> None:
    rows = (record(1, 2, None), record(1, 2, None, engine="vllm"))
    runs = [load_run(write_trials(tmp_path / str(place), [row])) for place, row in enumerate(rows)]
    assert draw_side_by_side(set_side_by_side(runs)) is None


@pytest.mark.parametrize("kind", ["html", "md", "csv", "json", "png"])
def test_every_format_of_the_command(tmp_path: Path, printed_by: Callable[..., str], kind: str) -> None:
    directories = [str(path) for path in three_engines(tmp_path)]
    text = printed_by("report", *directories, "--format", kind)
    if kind == "html":
        page = (tmp_path / "own" / "engines.html").read_text(encoding="utf-8")
        assert "llamacpp b11434" in page and "data:image/png;base64," in page
        assert text.strip() == str(tmp_path / "own" / "engines.html")
    elif kind == "png":
        assert text.strip() == str(tmp_path / "own" / "engines.png")
    elif kind == "json":
        assert len(json.loads(text)["rows"]) == 2
    elif kind == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["engine"] for row in rows].count("vllm 0.32.0") == 2
        assert rows[0]["max_num_seqs"] == "2"
    else:
        assert text.startswith("# kvplan · llamacpp b11434 · vllm 0.32.0")
        assert "| 4 | vllm 0.32.0 | oom_kv_init |" in text


def test_two_engines_are_set_side_by_side_and_two_sweeps_compared(
    tmp_path: Path, printed_by: Callable[..., str]
) -> None:
    own, slots, _ = three_engines(tmp_path)
    assert (
        json.loads(printed_by("report", str(own), str(slots), "--format", "json"))["schema"] == "kvplan.side_by_side/1"
    )
    again = sample_directory(tmp_path / "again")
    assert (
        json.loads(printed_by("report", str(again), str(again), "--format", "json"))["schema"] == "kvplan.comparison/1"
    )


def test_too_many_runs_are_refused(tmp_path: Path, said_by: Callable[..., str]) -> None:
    own, _, _ = three_engines(tmp_path)
    assert "8 runs are too many for one report" in said_by("report", *[str(own)] * 8)
