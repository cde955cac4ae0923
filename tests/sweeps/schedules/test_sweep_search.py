"""The search finds the boundary an exhaustive grid would find, in few probes, also when the prediction is wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sweep_helpers import FAKE_WORKER, tiny_plan

from kvplan.errors import UsageError
from kvplan.runs.answers.boundaries import find_boundaries
from kvplan.runs.answers.summary import find_violations
from kvplan.runs.directory import read_trials
from kvplan.runs.rows import empty_row
from kvplan.runs.trials import SETTING_NAMES, TrialSettings
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.schedules.boundary_search import AUDIT_SHARE, BoundarySearch, make_search
from kvplan.sweeps.schedules.schedule import Step, simulate
from kvplan.sweeps.session import resume_sweep, run_new_sweep

BASE = TrialSettings(0.9, 8, 4, 64, 512)


@dataclass
class Expectation:
    """Stands in for a predictor: contexts up to ``longest`` are expected to start."""

    longest: int

    def memory(self, settings: TrialSettings) -> Any:
        return SimpleNamespace(outcome="ok" if settings.max_model_len <= self.longest else "rejected_ctx")


def search_of(count: int, expected: int, audit_share: float = 0.0) -> BoundarySearch:
    predictor: Any = Expectation(16 * expected)
    return BoundarySearch("max_model_len", (line_of(count),), predictor, audit_share=audit_share)


def line_of(count: int) -> tuple[TrialSettings, ...]:
    return tuple(BASE.with_changes(max_model_len=16 * (index + 1)) for index in range(count))


def rows_of(search: BoundarySearch, works: Callable[[int], bool]) -> list[dict[str, Any]]:
    """The rows of a search in a world where contexts work or not as ``works`` says."""
    return [row_of(step, works) for step in simulate(search, lambda step: row_of(step, works))]


def row_of(step: Step, works: Callable[[int], bool]) -> dict[str, Any]:
    settings = step.trial.settings
    status = "ok" if works(settings.max_model_len) else "rejected_ctx"
    if step.skip_sentence is not None:
        status = "skipped_oom_dominated"
    values = {name: getattr(settings, name) for name in SETTING_NAMES}
    return empty_row() | values | {"status": status, "output_throughput": 1.0}


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 33, 64])
def test_every_boundary_is_found_in_log2_plus_three_probes_whatever_was_predicted(count: int) -> None:
    for true, expected in itertools.product(range(count + 1), sorted({0, 1, count // 2, count})):
        rows = rows_of(search_of(count, expected), lambda context, limit=16 * true: context <= limit)
        probed = [row for row in rows if row["status"] != "skipped_oom_dominated"]
        assert len(probed) <= (2 if true == expected else math.log2(count) + 3)
        works = [row["max_model_len"] for row in probed if row["status"] == "ok"]
        fails = [row["max_model_len"] for row in probed if row["status"] != "ok"]
        assert max(works, default=0) == 16 * true
        assert min(fails, default=16 * (count + 1)) == 16 * (true + 1)
        # everything beyond the boundary has a row, run or skipped
        assert len([row for row in rows if row["max_model_len"] > 16 * true]) == count - true


def test_audits_find_failures_and_successes_that_break_monotony() -> None:
    """A hole in the good part and a success in the bad one: found where an audit is drawn, and then flagged."""
    search = search_of(64, 40, audit_share=0.2)
    steps = simulate(search, lambda step: row_of(step, lambda context: context <= 640))
    audited = [step.trial.settings.max_model_len for step in steps if "audit" in step.trial.planes]
    assert 4 <= len(audited) <= 25
    hole, island = min(audited), max(audited)
    assert hole < 640 < island
    assert hole in {found["failed"] for found in find_violations(rows_of(search, lambda c: c <= 640 and c != hole))}
    assert island in {found["worked"] for found in find_violations(rows_of(search, lambda c: c <= 640 or c == island))}
    assert find_violations(rows_of(search, lambda c: c <= 640)) == []


def test_the_knee_is_found_by_halving(tmp_path: Path) -> None:
    predictor = tiny_plan(tmp_path).predictor
    batches = {"max_num_seqs": tuple(1 << exponent for exponent in range(9))}
    search = make_search(["max_num_seqs"], batches, BASE, predictor, 0)

    def answer(step: Step) -> dict[str, Any]:
        return row_of(step, lambda context: True) | {
            "output_throughput": 10.0 * min(step.trial.settings.max_num_seqs, 12)
        }

    steps = simulate(search, answer)
    assert len(steps) <= 5
    (knee,) = find_boundaries([answer(step) for step in steps])
    assert (knee.kind, knee.starts) == ("knee_max_num_seqs", 16)


def test_lines_are_the_other_axes_and_settings_run_once(tmp_path: Path) -> None:
    predictor = tiny_plan(tmp_path).predictor
    axes = {"max_model_len": (16, 32, 64, 128, 256), "gpu_memory_utilization": (0.01, 0.9)}
    search = make_search(["max_model_len"], axes, BASE, predictor, 0)
    assert [len(line) for line in search.searches[0].lines] == [5, 5]
    both = make_search(["max_model_len", "gpu_memory_utilization"], axes, BASE, predictor, 0)
    steps = simulate(both, lambda step: row_of(step, lambda context: True))
    ids = [step.trial.trial_id for step in steps]
    assert len(ids) == len(set(ids))
    assert [step.trial.number for step in steps] == list(range(1, len(steps) + 1))
    with pytest.raises(UsageError, match="--boundary cannot vary"):
        make_search(["dtype"], {}, BASE, predictor, 0)


AXES = {
    "max_model_len": "16..256+16",
    "gpu_memory_utilization": "0.5024..0.503+0.0002",
    "max_num_seqs": "8",
    "block_size": "4",
}


def frontier(rows: list[dict[str, Any]]) -> dict[float, int]:
    """Utilization -> longest context that started."""
    longest = {row["gpu_memory_utilization"]: 0 for row in rows}
    for row in rows:
        if row["status"] in ("ok", "queued", "preempted"):
            utilization = row["gpu_memory_utilization"]
            longest[utilization] = max(longest[utilization], row["max_model_len"])
    return longest


@pytest.mark.slow
def test_bisection_equals_the_exhaustive_grid_with_a_quarter_of_the_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the real engine: the same boundaries at every utilization."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    options = {"input_len": "2..6", "output_len": "2..3", "num_prompts": 2, "device_memory": "256MiB"}
    grid = run_new_sweep(tiny_plan(tmp_path, AXES, **options), tmp_path / "grid", SilentProgress(), command="test")
    plan = tiny_plan(tmp_path, AXES, boundary=("max_model_len",), **options)
    found = run_new_sweep(plan, tmp_path / "search", SilentProgress(), command="test")

    assert frontier(found.rows) == frontier(grid.rows)
    assert len(set(frontier(grid.rows).values())) >= 3
    num_run = sum(row["status"] != "skipped_oom_dominated" for row in found.rows)
    assert num_run <= len(grid.rows) / 4
    assert {boundary["kind"] for boundary in found.summary["boundaries"]} == {"largest_max_model_len"}


def test_a_search_that_was_cut_short_is_continued_with_the_same_rows(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, AXES, boundary=("max_model_len",), device_memory="256MiB")
    whole = run_new_sweep(plan, tmp_path / "whole", SilentProgress(), command="test", worker_command=FAKE_WORKER)
    run_new_sweep(plan, tmp_path / "cut", SilentProgress(), command="test", worker_command=FAKE_WORKER)
    path = tmp_path / "cut" / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:50])
    resume_sweep(tmp_path / "cut", SilentProgress(), worker_command=FAKE_WORKER)
    resumed = [item["row"] for item in read_trials(path).records]
    assert [(row["trial_id"], row["status"]) for row in resumed] == [
        (row["trial_id"], row["status"]) for row in whole.rows
    ]


@pytest.mark.parametrize("first", [0, 5, 17, 30])
def test_a_hole_as_wide_as_a_band_is_always_found_and_flagged(first: int) -> None:
    """Injected: 64 contexts of which the first 56 work, but for a hole of two bands' width somewhere among them."""
    hole = range(first, first + 2 * round(1 / AUDIT_SHARE) - 1)

    def works(context: int) -> bool:
        place = context // 16 - 1
        return place < 56 and place not in hole

    search = search_of(64, 56, audit_share=AUDIT_SHARE)
    rows = rows_of(search, works)
    flagged = find_violations(rows)
    assert any(violation["failed"] // 16 - 1 in hole for violation in flagged)
    num_run = sum(row["status"] != "skipped_oom_dominated" for row in rows)
    assert num_run <= 64 / 4


def utilization_rows(works: Callable[[float], bool], predicted_lowest: float) -> list[dict[str, Any]]:
    class Starts:
        def memory(self, settings: TrialSettings) -> Any:
            return SimpleNamespace(
                outcome="ok" if settings.gpu_memory_utilization >= predicted_lowest else "oom_kv_init"
            )

    line = tuple(BASE.with_changes(gpu_memory_utilization=round(step / 100, 2)) for step in range(100, 0, -1))
    predictor: Any = Starts()
    search = BoundarySearch("gpu_memory_utilization", (line,), predictor, audit_share=0.0)

    def answer(step: Step) -> dict[str, Any]:
        row = row_of(step, lambda _: works(step.trial.settings.gpu_memory_utilization))
        too_much = step.trial.settings.gpu_memory_utilization > 0.5
        return row | ({"status": "oom_runtime"} if row["status"] == "rejected_ctx" and too_much else {})

    return [answer(step) for step in simulate(search, answer)]


def test_the_highest_utilization_that_survives_load_is_a_boundary_of_its_own() -> None:
    """Starts from 0.31 on, and from 0.95 on runs out of memory under load: both sides, and no violation."""
    rows = utilization_rows(lambda utilization: 0.305 < utilization < 0.945, predicted_lowest=0.33)
    found = {boundary.kind: boundary for boundary in find_boundaries(rows, ["gpu_memory_utilization"])}
    assert (found["lowest_gpu_memory_utilization"].starts, found["lowest_gpu_memory_utilization"].fails) == (0.31, 0.3)
    highest = found["highest_gpu_memory_utilization"]
    assert (highest.starts, highest.fails) == (0.94, 0.95)
    assert find_violations(rows) == []
    num_run = sum(row["status"] != "skipped_oom_dominated" for row in rows)
    assert num_run <= 2 * (math.log2(100) + 3)


def test_where_every_utilization_above_survives_one_probe_says_so() -> None:
    rows = utilization_rows(lambda utilization: utilization > 0.305, predicted_lowest=0.31)
    probed = [row["gpu_memory_utilization"] for row in rows if row["status"] == "ok"]
    assert sorted(probed) == [0.31, 1.0]


def test_where_a_larger_batch_hurts_is_found_too(tmp_path: Path) -> None:
    predictor = tiny_plan(tmp_path).predictor
    batches = {"max_num_seqs": tuple(1 << exponent for exponent in range(9))}
    speed = {1: 10, 2: 20, 4: 40, 8: 62, 16: 63, 32: 62, 64: 50, 128: 40, 256: 30}

    def answer(step: Step) -> dict[str, Any]:
        return row_of(step, lambda _: True) | {"output_throughput": float(speed[step.trial.settings.max_num_seqs])}

    steps = simulate(make_search(["max_num_seqs"], batches, BASE, predictor, 0), answer)
    (knee,) = find_boundaries([answer(step) for step in steps])
    assert (knee.starts, knee.fails) == (8, 64)
    assert "throughput peaks at 8 sequences (62 tokens/s) and falls from 64 on" in knee.sentence
    assert len(steps) <= 8


def test_a_pair_of_axes_is_lines_along_the_first_for_values_of_the_second(tmp_path: Path) -> None:
    predictor = tiny_plan(tmp_path).predictor
    search = make_search(["max_model_len*gpu_memory_utilization"], {}, BASE, predictor, 0)
    (boundary,) = search.searches
    assert boundary.axis == "max_model_len"
    assert 6 <= len({line[0].gpu_memory_utilization for line in boundary.lines}) <= 10
    for wrong in ("max_model_len*dtype", "max_model_len*max_model_len", "a*b*c"):
        with pytest.raises(UsageError):
            make_search([wrong], {}, BASE, predictor, 0)
