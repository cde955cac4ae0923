"""Throughput, latency and the trade-off: which trials are drawn, and that labels can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text
from report_helpers import frame, trial, write_trials

from kvplan.reports.findings import clipped_sentence
from kvplan.reports.html.tables import column_groups, main_table
from kvplan.reports.plots import latency, pareto, throughput
from kvplan.reports.plots.canvas import NARROW_INCHES, balanced, drawing, new_figure
from kvplan.reports.plots.labels import place_labels
from kvplan.reports.selection import best_trial, curves, slices, slowest_trial
from kvplan.reports.tables import markdown_text
from kvplan.reports.wording import load_phrase, shortened_phrase
from kvplan.runs.storage.reader import Run, load_run


def run_of(directory: Path, *cells: dict[str, Any]) -> Run:
    """Measured trials with these cells; what they do not name is the same in all."""
    common = {"status": "ok", "run_number": 1, "gpu_memory_utilization": 0.9, "max_num_seqs": 4, "block_size": 16,
              "max_model_len": 512, "max_num_batched_tokens": 512, "dtype": "float32", "kv_cache_dtype": "float32",
              "median_tpot_ms": 20.0, "median_ttft_ms": 90.0, "p99_ttft_ms": 95.0, "p99_tpot_ms": 22.0}  # fmt: skip
    rows = [common | {"trial_id": str(place), "trial_number": place} | one for place, one in enumerate(cells)]
    return load_run(write_trials(directory, [{"row": one, "series": None} for one in rows]))


def small_pool_and_large_pool() -> list[dict[str, Any]]:
    """A slow line of many points in a small pool, and a fast one of two points."""
    slow = [
        {"gpu_memory_utilization": 0.2, "max_num_seqs": n, "output_throughput": 3.0 + n / 100} for n in (1, 2, 4, 8)
    ]
    fast = [{"gpu_memory_utilization": 0.9, "max_num_seqs": n, "output_throughput": 50.0 * n} for n in (1, 2)]
    return [*slow, *fast]


def test_the_throughput_plot_shows_the_slice_through_the_best_trial(tmp_path):
    run = run_of(tmp_path, *small_pool_and_large_pool())
    figure = new_figure()
    finding = throughput.draw(run, figure)
    assert finding == "Highest throughput: 100 tokens/s (max_num_seqs 2, gpu_memory_utilization 0.9)"
    assert "(through the best trial)" in " ".join(figure.get_supxlabel().split())
    assert latency.draw(run, new_figure()).endswith("(max_num_seqs 1 to 2)")


@pytest.mark.parametrize(("users", "named"), [(True, "users"), (False, "max_concurrency")])
def test_what_was_searched_is_named(tmp_path, users, named):
    """Users have a request in flight each, and both columns say how many."""
    cells = [{"max_concurrency": count, "users": count if users else None, "output_throughput": 10.0 * count,
              "workload": f"64 in, 8 out, {named} {count}"} for count in (1, 2, 4)]  # fmt: skip
    run = run_of(tmp_path, *cells)
    figure = new_figure()
    assert throughput.draw(run, figure) == f"Highest throughput: 40 tokens/s ({named} 4)"
    assert figure.axes[0].get_xlabel() == f"{named} (log scale)"
    assert latency.draw(run, new_figure()).endswith(f"({named} 1 to 4)")
    assert f"{named} 1 to 4" in load_phrase(run)


def test_lines_that_are_not_drawn_are_counted(tmp_path):
    cells = [{"max_num_seqs": seqs, "block_size": 8 * size, "output_throughput": 10.0 * seqs + size}
             for seqs in (1, 2) for size in range(1, 12)]  # fmt: skip
    figure = new_figure()
    throughput.draw(run_of(tmp_path, *cells), figure)
    assert "4 lines farther from it not drawn" in " ".join(figure.get_supxlabel().split())


def test_lines_are_named_by_what_was_swept(tmp_path):
    cells = [{"max_num_seqs": seqs, "kv_cache_dtype": dtype, "output_throughput": 10.0 * seqs}
             for seqs in (1, 2) for dtype in ("float32", "fp8")]  # fmt: skip
    figure = new_figure()
    throughput.draw(run_of(tmp_path, *cells), figure)
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names == ["kv_cache_dtype float32", "kv_cache_dtype fp8"]


def test_more_room_is_not_said_to_be_faster(tmp_path):
    cells = [{"max_model_len": length, "output_throughput": rate} for length, rate in ((128, 101.0), (512, 99.0))]
    assert throughput.draw(run_of(tmp_path, *cells), new_figure()) == "99 to 101 tokens/s over max_model_len 128 to 512"


def test_a_best_trial_beside_the_lines_is_said(tmp_path):
    lines = [{"max_num_seqs": seqs, "output_throughput": 50.0 * seqs} for seqs in (1, 2)]
    beside = {"max_num_seqs": 2, "max_model_len": 640, "output_throughput": 102.0}
    found = curves(run_of(tmp_path, *lines, beside), 3)
    assert (found.x, found.has_best, len(found.lines)) == ("max_num_seqs", False, 1)


def test_loads_of_a_search_are_one_line(tmp_path):
    """Although each load has a workload text of its own."""
    cells = [
        {"max_concurrency": load, "workload": f"all at once, at most {load} in flight", "output_throughput": 9.0 * load}
        for load in (1, 2, 4)
    ]
    figure = new_figure()
    finding = throughput.draw(run_of(tmp_path, *cells), figure)
    assert finding == "Highest throughput: 36 tokens/s (max_concurrency 4)"
    assert "all at once, max_concurrency 1 to 4" in figure.get_supxlabel()


@pytest.mark.parametrize("width_inches", [8.0, NARROW_INCHES])
def test_labels_of_a_crowded_front_do_not_overlap(tmp_path, width_inches):
    cells = [{"max_num_seqs": n, "median_tpot_ms": 20.0 + 0.05 * n, "output_throughput": 100.0 + 0.3 * n}
             for n in range(1, 10)]  # fmt: skip
    with drawing():
        figure = new_figure(width_inches)
        pareto.draw(run_of(tmp_path, *cells), figure)
        figure.draw_without_rendering()
        boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]  # without the line to the mark
    assert len(boxes) == 9
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])
    key = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert key[-1].startswith("9:") and "max_num_seqs" in key[-10]


def test_a_label_without_a_free_place_is_left_out():
    figure = new_figure()
    axes = figure.subplots()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    crowd = [(0.5, 0.5, "label")] * 40
    placed = place_labels(axes, crowd, [(0.5, 0.5)])
    assert 1 < len(placed) < len(crowd) and len(axes.texts) == len(placed)


def test_swept_settings_are_in_every_table(tmp_path):
    run = run_of(tmp_path, {"kv_cache_dtype": "fp8", "output_throughput": 1.0}, {"output_throughput": 2.0},
                 {"max_num_batched_tokens": 64, "output_throughput": 3.0})  # fmt: skip
    for table in (main_table(run), *column_groups(run)[0].tables):
        names = [heading.name for heading in table.headings]
        assert {"max_num_batched_tokens", "kv_cache_dtype"} <= set(names) and "dtype" not in names
    head = next(line for line in markdown_text(run).splitlines() if line.startswith("| trial_number"))
    assert "| max_model_len | max_num_batched_tokens | kv_cache_dtype | output_throughput" in head


def test_speeds_of_trials_with_clipped_prompts_are_not_compared(tmp_path):
    clipped = {"max_model_len": 128, "num_clipped_prompts": 6, "output_throughput": 90.0}
    whole = [
        {"max_num_seqs": number, "num_clipped_prompts": 0, "output_throughput": 10.0 * number} for number in (2, 4)
    ]
    run = run_of(tmp_path / "mixed", *whole, *(clipped | {"max_num_seqs": number} for number in (2, 4)))
    assert set(run.comparable["output_throughput"]) == {20.0, 40.0}
    best, slowest = best_trial(run), slowest_trial(run)
    assert (best.value("output_throughput"), slowest.value("output_throughput")) == (40.0, 20.0)
    found = curves(run, 4)
    assert found is not None and sum(len(line.trials) for line in found.lines) == 2
    with drawing():
        figure = new_figure()
        assert "Highest throughput: 40 tokens/s" in throughput.draw(run, figure)
        assert any("without 2 trials whose prompts were shortened" in text.get_text() for text in figure.texts)
    alone = run_of(tmp_path / "all", clipped, clipped | {"max_num_seqs": 8})
    assert len(alone.comparable) == 2, "where all are clipped alike, they compare"
    assert shortened_phrase(alone) == ""


def test_trials_with_clipped_prompts_are_said_not_to_compare(tmp_path):
    clipped = {"max_model_len": 128, "num_clipped_prompts": 6, "output_throughput": 60.0}
    whole = {"num_clipped_prompts": 0, "output_throughput": 40.0}
    assert clipped_sentence(run_of(tmp_path / "mixed", clipped, whole)) == (
        "At max_model_len 128 prompts were shortened to fit (1 trial, column num_clipped_prompts): "
        "they did less work than the others, so their speeds do not compare."
    )
    assert "compare" not in clipped_sentence(run_of(tmp_path / "all", clipped, clipped | {"max_num_seqs": 8}))
    assert clipped_sentence(run_of(tmp_path / "none", whole)) == ""
    assert "> At max_model_len 128 prompts" in markdown_text(run_of(tmp_path / "mixed", clipped, whole))


def test_slices_prefer_the_one_that_holds_the_best_trial():
    best = trial(trial_id="best", max_num_seqs=2, dtype="bfloat16")
    wide = [trial(max_num_seqs=seqs, dtype="float32") for seqs in (1, 2, 4)]
    found = slices(frame(*wide, best), ("max_num_seqs",), best)
    assert [list(part.trials.index) for part in found] == [[3], [0, 1, 2]]


def test_a_number_and_its_unit_stay_on_one_line():
    assert "170\N{NO-BREAK SPACE}tokens/s" in balanced("Still rising at the largest batch: 170 tokens/s", 38)
    assert balanced("over gpu_memory_utilization 0.5", 12).splitlines()[1].startswith("gpu_memory_utilization")


def test_one_request_is_singular(tmp_path):
    assert load_phrase(run_of(tmp_path, {"num_prompts": 1, "workload": "32 in"})) == "float32 · 1 request, 32 in"
