"""A run with everything in it: the service level, a hole in the map, what medians leave out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sweeps" / "cases"))
from sample_full import write_full_directory

from kvplan.reports.findings import recommendations, sentences
from kvplan.reports.html.page import report_page
from kvplan.reports.outcome_map import violations
from kvplan.reports.pictures import draw_pictures
from kvplan.reports.searches import searches
from kvplan.reports.tables import markdown_text
from kvplan.runs.storage.reader import Run, load_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(write_full_directory(tmp_path_factory.mktemp("full")))


@pytest.mark.slow
def test_the_page_shows_the_level_the_hole_and_what_is_left_out(run: Run) -> None:
    pictures = draw_pictures(run)
    assert "slo" in [picture.name for picture in pictures]
    page = report_page(run, pictures)
    assert page.index('id="recommendation"') < page.index('id="slo"') < page.index('id="outcomes"')
    assert "met up to max_concurrency 9 (in 2 of 3 runs; in every run up to 8; at 10 in 1 of 3 runs)" in page
    assert "Excluded from medians: run 1 of utilization 0.9, 8 sequences, block 16" in page
    assert "other processes used 64 % of the CPU; run 101 replaces it" in page
    assert "Not monotonic: gpu_memory_utilization 0.3 failed although 0.19 worked" in page
    finding = next(picture.finding for picture in pictures if picture.name == "slo")
    assert finding == "SLO of ttft 1,500 ms and tpot 60 ms (p99) met up to max_concurrency 9 (2 of 3 runs)"


def test_the_hole_is_flagged_on_the_map(run: Run) -> None:
    flagged = [(entry["gpu_memory_utilization"], entry["max_model_len"]) for entry in violations(run)]
    assert set(flagged) == {(0.3, 512)}
    assert len(sentences(run, "violations")) == 2


def test_excluded_runs_stay_in_the_table_and_leave_the_pictures(run: Run) -> None:
    (excluded,) = run.excluded
    assert run.trial(excluded) is not None
    assert excluded not in set(run.measured["trial_id"])
    assert "again" in set(run.measured["trial_id"])


def test_markdown_and_recommendation_tell_the_level(run: Run) -> None:
    text = markdown_text(run)
    assert "## Highest load within the SLO" in text
    assert "> Excluded from medians: run 1" in text
    assert recommendations(run)[0].title == "Fastest within the SLO"
    assert len(searches(run)) == 1
