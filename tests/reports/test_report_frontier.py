"""The boundary over two axes: in text and JSON, and as a map that is drawn to scale."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from report_helpers import write_trials

from kvplan.reports.html.tables import column_groups, main_table
from kvplan.reports.outcome_map import caption, outcome_map
from kvplan.reports.pictures import draw_pictures
from kvplan.reports.plots import outcomes
from kvplan.reports.plots.canvas import NARROW_INCHES, drawing, new_figure
from kvplan.reports.tables import csv_text, markdown_text
from kvplan.runs.answers.boundaries import find_boundaries
from kvplan.runs.rows import empty_row
from kvplan.runs.storage.reader import Run, load_run

# Utilization -> largest context that starts, of those tried.
FRONTIER = {0.15: None, 0.16: 128, 0.17: 384, 0.18: 512}
CONTEXTS = (128, 256, 384, 512)


def row(status: str, **values: Any) -> dict[str, Any]:
    settings = {"gpu_memory_utilization": 0.9, "max_num_seqs": 16, "block_size": 16, "max_model_len": 512,
                "max_num_batched_tokens": 512, "dtype": "float32", "kv_cache_dtype": "float32"}  # fmt: skip
    speed = 100.0 if status == "ok" else None
    base = {"status": status, "predicted_status": status, "output_throughput": speed, "run_number": 1}
    return empty_row() | settings | base | values


def frontier_rows() -> list[dict[str, Any]]:
    """Every utilization with both sides of its boundary; contexts farther beyond it were not run."""
    rows = []
    for utilization, last in FRONTIER.items():
        first_failure = next((length for length in CONTEXTS if last is None or length > last), None)
        for length in CONTEXTS:
            failed = "rejected_ctx" if length == first_failure else "skipped_oom_dominated"
            status = "ok" if last is not None and length <= last else failed
            place = {"gpu_memory_utilization": utilization, "max_model_len": length}
            predicted = "ok" if status == "ok" else "rejected_ctx"
            rows.append(row(status, **place, predicted_status=predicted, trial_id=f"{utilization}/{length}"))
    return rows


def many_contexts() -> list[dict[str, Any]]:
    """Sixty-four contexts at each of four utilizations, of which a search ran those at the boundary."""
    rows = []
    for utilization, last in ((0.15, 0), (0.16, 256), (0.17, 512), (0.19, 1024)):
        for length in range(16, 1025, 16):
            status = "ok" if length in (last, 16) and last else "rejected_ctx"
            if status == "rejected_ctx" and length != last + 16:
                if length <= last:
                    continue
                status = "skipped_oom_dominated"
            place = {"gpu_memory_utilization": utilization, "max_model_len": length}
            predicted = "ok" if length <= last else "rejected_ctx"
            rows.append(row(status, **place, predicted_status=predicted, trial_id=f"{utilization}/{length}"))
    return rows


def run_of(directory: Path, rows: list[dict[str, Any]], *boundary: str) -> Run:
    write_trials(directory, [{"row": one, "series": None} for one in rows])
    (directory / "manifest.json").write_text(json.dumps({"options": {"boundary": boundary}}))
    return load_run(directory)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("pair"), many_contexts(), "max_model_len*gpu_memory_utilization")


def test_a_boundary_over_a_pair_of_axes_is_one_sentence_for_every_value_of_the_second():
    found = find_boundaries(frontier_rows(), ["max_model_len*gpu_memory_utilization"])
    assert [boundary.at["gpu_memory_utilization"] for boundary in found] == list(FRONTIER)
    assert [boundary.starts for boundary in found] == list(FRONTIER.values())
    assert [boundary.sentence.split(": ")[1] for boundary in found] == [
        "fails at every context tried, 128 and up",
        "starts up to 128 tokens, fails at 256",
        "starts up to 384 tokens, fails at 512",
        "starts at every context tried, up to 512 tokens",
    ]


def test_the_pair_turned_round_has_a_boundary_for_every_context():
    found = find_boundaries(reversed(frontier_rows()), ["gpu_memory_utilization*max_model_len"])
    assert [(boundary.at["max_model_len"], boundary.starts) for boundary in found] == [
        (128, 0.16), (256, 0.17), (384, 0.17), (512, 0.18)
    ]  # fmt: skip


def test_a_search_without_a_failure_says_so_even_after_one_probe():
    (boundary,) = find_boundaries([row("ok")], ["max_model_len"])
    assert (boundary.starts, boundary.fails) == (512, None)
    assert boundary.sentence.endswith("starts at every context tried, up to 512 tokens")
    assert find_boundaries([row("ok")]) == []


def test_boundaries_of_two_kv_dtypes_are_told_apart():
    rows = [
        row(status, max_model_len=length, kv_cache_dtype=dtype)
        for dtype, last in (("float32", 128), ("fp8", 256))
        for length, status in ((128, "ok"), (256, "ok" if last == 256 else "rejected_ctx"), (512, "rejected_ctx"))
    ]
    first, second = find_boundaries(rows)
    assert "KV cache float32: starts up to 128" in first.sentence
    assert "KV cache fp8: starts up to 256" in second.sentence
    assert "float32" not in second.sentence


def test_one_sequence_is_singular():
    rows = [row("ok", max_num_seqs=number, output_throughput=speed) for number, speed in ((1, 99.0), (2, 100.0))]
    (knee,) = find_boundaries(rows, ["max_num_seqs"])
    assert "levels off at 1 sequence (99 tokens/s)" in knee.sentence


def test_skipped_trials_are_not_counted_as_predicted_right(searched):
    finding = outcomes.draw(searched, new_figure())
    assert finding == (
        "max_model_len up to 256 at gpu_memory_utilization 0.16, 1,024 at 0.19; "
        "the prediction was right for all 9 that ran"
    )


def test_a_map_of_many_contexts_is_compact_and_its_axes_are_to_scale(searched):
    with drawing():
        figure = new_figure()
        outcomes.draw(searched, figure)
        figure.draw_without_rendering()
    axes = figure.axes[0]
    assert figure.get_figheight() <= 5
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.15", "0.16", "0.17", "0.19"]
    assert list(axes.get_xticks()) == [0.15, 0.16, 0.17, 0.19]
    boundary = next(line for line in axes.lines if line.get_label() == "boundary: last to serve")
    assert list(zip(*boundary.get_data(), strict=True)) == [(0.16, 256), (0.17, 512), (0.19, 1024)]
    predicted = next(line for line in axes.lines if line.get_label() == "predicted boundary")
    assert list(predicted.get_ydata()) == [256, 512, 1024]
    assert {text.get_text() for text in axes.texts} == {"256", "512", "1,024"}


def test_a_boundary_along_one_axis_is_a_strip(tmp_path):
    rows = [row("ok" if value >= 30 else "oom_kv_init", gpu_memory_utilization=value / 100, trial_id=str(value),
                predicted_status="ok") for value in range(1, 101)]  # fmt: skip
    (picture,) = [one for one in draw_pictures(run_of(tmp_path, rows, "gpu_memory_utilization"))
                  if one.name == "outcomes"]  # fmt: skip
    assert picture.finding.startswith(
        "gpu_memory_utilization from 0.3 at max_model_len 512; the prediction was wrong for"
    )
    width, height = Image.open(io.BytesIO(picture.png)).size
    assert width <= 1100 and height <= 500


def test_the_map_runs_over_what_was_varied(tmp_path):
    rows = [row("ok", max_num_seqs=seqs, kv_cache_dtype=dtype, trial_id=f"{seqs}{dtype}")
            for seqs in (1, 4) for dtype in ("float32", "fp8")]  # fmt: skip
    plane = outcome_map(run_of(tmp_path, rows))
    assert (plane.x_column, plane.y_column, len(plane.cells)) == ("max_num_seqs", "kv_cache_dtype", 4)


def test_one_setting_has_no_map(tmp_path):
    assert outcome_map(run_of(tmp_path, [row("ok", trial_id="a")])) is None


@pytest.mark.parametrize("width_inches", [8.0, NARROW_INCHES])
def test_cells_with_clipped_prompts_are_marked(tmp_path, width_inches):
    rows = [row("ok", max_model_len=length, num_clipped_prompts=clipped, trial_id=str(length))
            for length, clipped in ((128, 6), (512, 0))]  # fmt: skip
    with drawing():
        figure = new_figure(width_inches)
        outcomes.draw(run_of(tmp_path, rows), figure)
    marked = [text.get_text().endswith("*") for text in figure.axes[0].texts]
    assert sorted(marked) == [False, True]
    assert "prompts shortened" in " ".join(figure.get_supxlabel().split())


def test_prompts_that_were_clipped_but_not_served_mark_nothing(tmp_path):
    rows = [row("ok", max_model_len=512, num_clipped_prompts=0, trial_id="a"),
            row("rejected_ctx", max_model_len=16, num_clipped_prompts=6, trial_id="b")]  # fmt: skip
    figure = new_figure()
    outcomes.draw(run_of(tmp_path, rows), figure)
    assert "prompts shortened" not in " ".join(figure.get_supxlabel().split())


def test_trials_that_a_search_skipped_do_not_fill_the_tables(searched):
    assert len(main_table(searched).rows) == 9
    assert all(len(table.rows) == 9 for group in column_groups(searched) for table in group.tables)
    text = markdown_text(searched)
    assert f"Not listed: {len(searched.trials) - 9} settings not run because a lighter one had failed." in text
    assert sum(line.startswith("| ") for line in text.splitlines()) == 2 + 9
    assert len(csv_text(searched).splitlines()) == 1 + len(searched.trials)


def test_a_map_says_where_the_models_positions_are_the_limit(tmp_path: Path) -> None:
    limit = {"max_model_len": 2048, "largest_max_model_len": 1024, "context_limited_by": "model"}
    run = run_of(tmp_path, [row("ok"), row("rejected_ctx", trial_id="b", **limit)])
    plane = outcome_map(run)
    assert plane is not None and caption(run, plane).endswith("; the model has 1,024 positions")
    with drawing():
        figure = new_figure()
        outcomes.draw(run, figure)
        assert "rejected\nat most 1,024" in [text.get_text() for text in figure.axes[0].texts]
