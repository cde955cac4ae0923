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
from kvplan.sweeps.boundaries import find_boundaries, find_violations
from kvplan.sweeps.columns import empty_row
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.schedule import Step, play
from kvplan.sweeps.search import BoundarySearch, make_search
from kvplan.sweeps.session import resume_sweep, run_new_sweep
from kvplan.sweeps.store import read_trials
from kvplan.sweeps.trial import SETTING_NAMES, TrialSettings

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
    return [row_of(step, works) for step in play(search, lambda step: row_of(step, works))]


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
    steps = play(search, lambda step: row_of(step, lambda context: context <= 640))
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

    steps = play(search, answer)
    assert len(steps) <= 5
    (knee,) = find_boundaries([answer(step) for step in steps])
    assert (knee.kind, knee.starts) == ("knee_max_num_seqs", 16)


def test_lines_are_the_other_axes_and_settings_run_once(tmp_path: Path) -> None:
    predictor = tiny_plan(tmp_path).predictor
    axes = {"max_model_len": (16, 32, 64, 128, 256), "gpu_memory_utilization": (0.01, 0.9)}
    search = make_search(["max_model_len"], axes, BASE, predictor, 0)
    assert [len(line) for line in search.searches[0].lines] == [5, 5]
    both = make_search(["max_model_len", "gpu_memory_utilization"], axes, BASE, predictor, 0)
    steps = play(both, lambda step: row_of(step, lambda context: True))
    ids = [step.trial.trial_id for step in steps]
    assert len(ids) == len(set(ids))
    assert [step.trial.number for step in steps] == list(range(1, len(steps) + 1))
    with pytest.raises(UsageError, match="cannot be searched"):
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
