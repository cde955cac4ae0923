"""Which trials a report shows, and what it says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from report_helpers import failed_records, frame, records, sample_directory, sample_run, trial, write_trials
from sample_full import write_records
from sample_rows import sample_records

from kvplan.reports.findings import (
    kernels_sentence,
    kv_waste,
    noise_sentence,
    prediction_sentences,
    recommendations,
    status_counts,
)
from kvplan.reports.html.page import notes
from kvplan.reports.looks import LOOKS
from kvplan.reports.outcome_map import outcome_map
from kvplan.reports.plots import occupancy
from kvplan.reports.plots.canvas import drawing, new_figure
from kvplan.reports.plots.occupancy import chosen_trials
from kvplan.reports.selection import (
    best_trial,
    knee,
    most_preempted_trial,
    pareto_front,
    slices,
    slowest_trial,
    spreads,
    user_points,
)
from kvplan.reports.wording import cell, setting, short_number
from kvplan.runs.statuses import STATUS_BRIEF, best_to_worst
from kvplan.runs.storage.reader import load_run


def test_slices_hold_everything_else_fixed_and_the_one_nearest_to_the_best_trial_comes_first():
    plane = [
        trial(max_num_seqs=seqs, block_size=size, gpu_memory_utilization=0.9) for seqs in (2, 4) for size in (8, 16)
    ]
    stray = trial(max_num_seqs=8, block_size=8, gpu_memory_utilization=0.5)
    found = slices(frame(stray, *plane), ("max_num_seqs", "block_size"), None)
    assert [list(part.trials.index) for part in found] == [[1, 2, 3, 4], [0]]
    assert found[0].fixed["gpu_memory_utilization"] == 0.9 and "block_size" not in found[0].fixed
    found = slices(frame(stray, *plane), ("max_num_seqs", "block_size"), stray)
    assert [list(part.trials.index) for part in found] == [[0], [1, 2, 3, 4]]


def test_repetitions_become_median_and_range():
    runs = [trial(max_num_seqs=4, output_throughput=value) for value in (90.0, 130.0, 100.0)]
    points = spreads(frame(*runs), "output_throughput", "max_num_seqs")
    assert points.loc[4].to_dict() == {"median": 100.0, "min": 90.0, "max": 130.0, "count": 3}


@pytest.mark.parametrize(
    ("points", "expected"),
    [({}, None), ({2: 10.0}, 2), ({1: 50.0, 2: 96.0, 4: 100.0, 8: 99.0}, 2), ({1: 10.0, 2: 20.0, 4: 40.0}, 4)],
)
def test_the_knee_is_the_smallest_batch_near_the_best(points, expected):
    assert knee(pd.Series(points, dtype=float)) == expected


def test_the_pareto_front_holds_what_nothing_beats():
    both = [(50.0, 10.0), (40.0, 40.0), (30.0, 30.0), (20.0, 60.0), (10.0, 60.0), (40.0, 35.0)]
    trials = [
        trial(max_num_seqs=place, median_tpot_ms=1000 / user, output_throughput=total)
        for place, (user, total) in enumerate(both)
    ]
    points = pareto_front(user_points(frame(*trials)))
    front = list(zip(points["one_user"].round(), points["all_users"], strict=True))
    assert front == [(20, 60.0), (40, 40.0), (50, 10.0)]


def test_repetitions_are_one_point_of_the_front():
    runs = [trial(max_num_seqs=4, median_tpot_ms=20.0, output_throughput=value) for value in (90.0, 130.0, 100.0)]
    assert list(user_points(frame(*runs))["all_users"]) == [100.0]


def test_the_summary_decides_which_trial_is_best(tmp_path):
    sample_directory(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    summary["best"][0]["trial_id"] = "sample0002"
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert best_trial(load_run(tmp_path)).trial_id == "sample0002"


def test_one_of_several_runs_is_shown_beside_their_median(tmp_path):
    sample_directory(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    best = summary["best"][0]
    best["num_runs"], best["figures"]["output_throughput"] = 2, 12.5
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    run = load_run(tmp_path)
    speed = short_number(best_trial(run).number("output_throughput"))
    with drawing():
        figure = new_figure()
        occupancy.draw(run, figure)
    title = figure.axes[0].get_title(loc="left").replace("\n", " ")
    assert title.startswith(f"Best (for throughput): 12.5 tokens/s, median of 2 runs; {speed} in this one (ok)")


def test_without_a_summary_the_fastest_undisturbed_trial_is_best(tmp_path):
    run = load_run(write_trials(tmp_path, records()))
    best = best_trial(run)
    assert best.status == "ok"
    undisturbed = run.measured[run.measured["status"] == "ok"]
    assert best.number("output_throughput") == undisturbed["output_throughput"].max()


def test_the_worst_trial_is_the_most_preempted_or_else_the_slowest(tmp_path):
    run = sample_run(tmp_path / "all")
    assert most_preempted_trial(run).status == "preempted"
    assert [name.split(" ")[0] for name, _ in chosen_trials(run)] == ["Best", "Worst"]
    calm = load_run(write_trials(tmp_path / "calm", [r for r in records() if r["row"]["status"] == "ok"]))
    assert most_preempted_trial(calm) is None
    assert chosen_trials(calm)[1][1] is slowest_trial(calm)


def test_the_map_takes_the_worst_of_repetitions(tmp_path):
    kept = [r for r in records() if r["row"]["design_parts"] == "memory"]
    flaky = json.loads(json.dumps(next(r for r in kept if r["row"]["status"] == "ok")))
    flaky["row"] |= {"status": "oom_runtime", "run_number": 2, "trial_id": "flaky"}
    plane = outcome_map(load_run(write_trials(tmp_path, [*kept, flaky])))
    cells = plane.cells.set_index(["gpu_memory_utilization", "max_model_len"])
    cell = cells.loc[flaky["row"]["gpu_memory_utilization"], flaky["row"]["max_model_len"]]
    assert len(cells) == 27 and cell["num_trials"] == 2
    assert cell["status"] == "oom_runtime"
    assert cell["serves"] is True


def test_rows_of_failed_trials_share_the_map_with_measured_ones(tmp_path):
    """A trial that never started has no dtype; that must not put it on another map."""
    kept = records()
    for record in kept:
        if record["series"] is None:
            record["row"]["dtype"] = None
    assert len(outcome_map(load_run(write_trials(tmp_path, kept))).cells) == 27


def test_recommendations_carry_settings_reason_and_commands(tmp_path):
    found = recommendations(sample_run(tmp_path))
    assert found[0].title == "Highest throughput"
    assert found[0].settings["max_num_seqs"] == "32"
    assert found[0].figures["output throughput"].endswith("tokens/s")
    assert set(found[0].commands) == {"kvplan", "vllm"}


def test_a_setting_that_is_best_twice_is_recommended_once(tmp_path):
    path = sample_directory(tmp_path) / "summary.json"
    summary = json.loads(path.read_text())
    summary["best"].append(summary["best"][0] | {"goal": "median_tpot_ms"})
    path.write_text(json.dumps(summary))
    found = recommendations(load_run(tmp_path))
    assert [entry.title for entry in found] == ["Highest throughput, lowest TPOT"]


def test_without_a_summary_the_rows_recommend(tmp_path):
    found = recommendations(load_run(write_trials(tmp_path, records())))
    assert len(found) == 1
    assert found[0].commands["kvplan"].startswith('LLM(model="gpt2", gpu_memory_utilization=0.9, max_num_seqs=32')
    assert "vllm" not in found[0].commands and "multiples of 16, not 8" in found[0].reason


def test_without_a_summary_the_command_names_the_kv_dtype(tmp_path):
    kept = [record for record in records() if record["row"]["status"] == "ok"][:1]
    kept[0]["row"] |= {"dtype": "bfloat16", "kv_cache_dtype": "fp8", "block_size": 16}
    (found,) = recommendations(load_run(write_trials(tmp_path, kept)))
    assert "--dtype bfloat16 --kv-cache-dtype fp8" in found.commands["vllm"]
    assert found.settings["kv_cache_dtype"] == "fp8"
    del kept[0]["row"]["device"]
    (found,) = recommendations(load_run(write_trials(tmp_path / "damaged", kept)))
    assert found.commands == {} and found.settings["kv_cache_dtype"] == "fp8"


def test_nothing_served_recommends_nothing(tmp_path):
    run = load_run(write_trials(tmp_path, failed_records()))
    assert recommendations(run) == [] and kv_waste(run) is None and prediction_sentences(run) == []


def test_status_counts_run_from_best_to_worst(tmp_path):
    counts = status_counts(sample_run(tmp_path))
    assert list(counts)[:3] == ["ok", "queued", "preempted"]
    assert sum(counts.values()) == len(records())


def test_waste_is_held_tokens_of_both_layouts(tmp_path):
    found = kv_waste(sample_run(tmp_path))
    assert (found.paged_pct, found.contiguous_pct) == (pytest.approx(96.6), 21.0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.0, "0"),
        (0.185, "0.185"),
        (12.345, "12.3"),
        (1024.0, "1,024"),
        (1234.56, "1,235"),
        (-3.0, "-3"),
    ],
)
def test_short_numbers(value, expected):
    assert short_number(value) == expected


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (None, "", ""),
        (float("nan"), "bytes", ""),
        (True, "", "yes"),
        (1536 * 1024**2, "bytes", "1.50 GiB"),
        ("inf", "", "inf"),
        ([8, 16], "", "8, 16"),
    ],
)
def test_cells(value, unit, expected):
    assert cell(value, unit) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(0.3355, "0.3355"), (0.9, "0.9"), (1024, "1,024"), (1.0, "1"), (None, "")]
)
def test_settings_are_written_in_full(value, expected):
    assert setting(value) == expected


def test_a_setting_within_the_service_level_is_recommended_first(tmp_path):
    path = sample_directory(tmp_path) / "summary.json"
    summary = json.loads(path.read_text())
    within = summary["best"][0] | {"goal": "slo", "trial_id": "sample0001", "figures": {"goodput_pct": 100.0}}
    summary["best"].insert(0, within | {"settings": within["settings"] | {"max_num_seqs": 2}})
    path.write_text(json.dumps(summary))
    run = load_run(tmp_path)
    assert [entry.title for entry in recommendations(run)] == ["Fastest within the SLO", "Highest throughput"]
    assert recommendations(run)[0].figures == {"requests within the SLO": "100 %"}
    assert best_trial(run).trial_id != "sample0001"


@pytest.mark.parametrize(("share", "is_told"), [(None, False), (1.5, False), (40.0, True)])
def test_a_busy_machine_is_told(tmp_path, share, is_told):
    kept = records()
    for record in kept:
        record["row"]["other_cpu_pct"] = share
    sentence = noise_sentence(load_run(write_trials(tmp_path, kept)))
    assert ("other processes used 40 %" in sentence) is is_told
    assert bool(sentence) is is_told


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ((None,), ""),  # as older runs
        (("cpu-amx", "cpu-avx512"), ""),
        (("reference",), "in every timed trial the engine ran on plain torch, 5 to 26 times slower"),
        (("reference", "cpu-avx2"), "timed trials the engine ran on plain torch"),
    ],
)
def test_speeds_of_plain_torch_are_told(tmp_path, kernels, words):
    kept = records()
    for number, record in enumerate(kept):
        record["row"]["kernels"] = kernels[number % len(kernels)]
    run = load_run(write_trials(tmp_path, kept))
    sentence = kernels_sentence(run)
    assert words in sentence
    assert bool(sentence) is bool(words)
    assert (sentence in notes(run)) is bool(words)


def test_a_missing_figure_of_a_frame_is_written_as_one():
    assert (short_number(float("nan")), cell(float("nan"), "bytes"), setting(float("nan"))) == ("–", "", "")


def test_every_status_has_a_look():
    assert set(LOOKS) == set(STATUS_BRIEF)
    assert best_to_worst(["melted", "crash", "ok", "crash"]) == ["ok", "crash", "melted"]


def test_a_cell_of_the_outcome_map_leaves_replaced_runs_out_of_its_throughput(tmp_path: Path) -> None:
    """A cell showed the median of a run on a busy machine and of its rerun: a speed that nothing had."""
    records = [record for record in sample_records() if record["row"]["design_parts"] == "memory"]
    noisy = next(r for r in records if r["row"]["gpu_memory_utilization"] == 0.9 and r["row"]["max_model_len"] == 512)
    again = {
        **noisy,
        "row": noisy["row"] | {"trial_id": "again", "run_number": 101, "rerun_of": 1, "output_throughput": 170.0},
    }
    noisy["row"] |= {"other_cpu_pct": 64.0, "output_throughput": 34.0}
    plane = outcome_map(load_run(write_records(tmp_path, [*records, again])))
    assert plane is not None
    cells = plane.cells.set_index(["gpu_memory_utilization", "max_model_len"])
    assert cells.loc[(0.9, 512), "throughput"] == 170.0
    assert cells.loc[(0.9, 512), "num_trials"] == 2
