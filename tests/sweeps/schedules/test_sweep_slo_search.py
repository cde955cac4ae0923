"""The largest load within a service level: found by bisection, several runs at its edge, whatever was predicted."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sweep_helpers import FAKE_WORKER, tiny_plan

from kvplan.errors import UsageError
from kvplan.runs.answers.slo_result import ShareInterval, slo_results
from kvplan.runs.directory import read_trials
from kvplan.runs.rows import empty_row
from kvplan.runs.trials import SETTING_NAMES, Load, TrialSettings, rate_as_json
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.schedules.schedule import Step, simulate
from kvplan.sweeps.schedules.slo_search import LoadRange, SloSearch, rates_around
from kvplan.sweeps.session import resume_sweep, run_new_sweep

BASE = TrialSettings(0.9, 8, 16, 256, 512)
LEVEL = {"ttft": 500.0, "tpot": 50.0}
LEVEL_SECONDS = {"ttft": 0.5, "tpot": 0.05}


def search_of(variable: str, expected: float, num_requests: int = 32, num_runs: int = 3) -> SloSearch:
    def expects(settings: TrialSettings, load: Load) -> bool:
        return (getattr(load, variable) or 0) <= expected

    return SloSearch(LoadRange(variable), (BASE,), num_requests, num_runs, expects)


def row_of(step: Step, keeps: Callable[[Load, int], bool], capacity: float = 6.0) -> dict[str, Any]:
    """The row of a world in which run ``run_number`` under a load keeps the service level or not."""
    trial = step.trial
    kept = keeps(trial.load, trial.run_number)
    return empty_row() | {name: getattr(trial.settings, name) for name in SETTING_NAMES} | {
        "trial_id": trial.trial_id, "run_number": trial.run_number, "status": "ok",
        "design_parts": ";".join(trial.planes),
        "request_rate": rate_as_json(trial.load.request_rate or math.inf),
        "max_concurrency": trial.load.max_concurrency,
        "num_prompts": 32, "goodput_pct": 100.0 if kept else 75.0, "slo_pass": kept, "request_throughput": capacity,
        "request_goodput": 3.0 if kept else 2.0, "output_throughput": 60.0, "p99_ttft_ms": 400.0, "p99_tpot_ms": 40.0,
    }  # fmt: skip


@pytest.mark.parametrize("num_runs", [1, 3])
def test_largest_concurrency_is_found_whatever_was_predicted(num_runs: int) -> None:
    for true, expected in itertools.product(range(33), (0, 1, 16, 32)):
        search = search_of("max_concurrency", expected, num_runs=num_runs)

        def keeps(load: Load, _: int, true: int = true) -> bool:
            return (load.max_concurrency or 0) <= true

        rows = [row_of(step, keeps) for step in simulate(search, lambda step, keeps=keeps: row_of(step, keeps))]
        probed = {row["max_concurrency"] for row in rows}
        assert len(probed) <= (2 if true == expected else math.log2(32) + 3)
        result = slo_results(rows, LEVEL)["searches"][0]
        assert (result["keeps"] or 0) == true
        assert result["misses"] == (true + 1 if true < 32 else None)
        edge = [point for point in result["points"] if point["value"] in (true, true + 1)]
        assert all(point["num_runs"] == num_runs for point in edge)


def test_one_lucky_run_decides_nothing() -> None:
    """At 9 in flight one run of three keeps the level, at 7 one misses it: the majority decides, both are told."""

    def keeps(load: Load, run_number: int) -> bool:
        concurrency = load.max_concurrency or 0
        return concurrency < 7 or (concurrency in (7, 8) and run_number != 2) or (concurrency == 9 and run_number == 1)

    rows = [row_of(step, keeps) for step in simulate(search_of("max_concurrency", 8), lambda step: row_of(step, keeps))]
    result = slo_results(rows, LEVEL)["searches"][0]
    assert (result["keeps"], result["misses"]) == (8, 9)
    at = next(point for point in result["points"] if point["value"] == 8)
    assert (at["num_keeping"], at["num_runs"]) == (2, 3)
    assert 0.2 < at["runs_keeping"]["low"] < at["runs_keeping"]["share"] < at["runs_keeping"]["high"] < 0.95
    assert result["never"] is None or result["never"] > 9
    assert result["always"] is None or result["always"] < 8
    assert "2 of 3 runs" in result["sentence"] and "1 of 3 runs" in result["sentence"]


def test_rates_lie_around_the_capacity_that_was_measured() -> None:
    search = search_of("request_rate", 2.0)
    steps = simulate(search, lambda step: row_of(step, lambda load, _: (load.request_rate or 0) <= 3.3))
    assert steps[0].trial.load.request_rate == math.inf
    rows = [row_of(step, lambda load, _: (load.request_rate or 0) <= 3.3) for step in steps]
    result = slo_results(rows, LEVEL)["searches"][0]
    rates = rates_around(6.0)
    assert result["variable"] == "request_rate"
    assert result["keeps"] == max(rate for rate in rates if rate <= 3.3)
    assert result["misses"] == min(rate for rate in rates if rate > 3.3)
    assert len({step.trial.load for step in steps}) - 1 <= math.log2(len(rates)) + 3
    assert len(rates) == 24 and rates[0] < 6.0 / 8 and rates[-1] > 6.0


def test_nothing_keeps_it_or_everything_does() -> None:
    for world, expected in ((False, "is missed even at"), (True, "the highest load tried")):
        rows = [
            row_of(step, lambda load, _, world=world: world)
            for step in simulate(
                search_of("max_concurrency", 4), lambda step, world=world: row_of(step, lambda load, _: world)
            )
        ]
        assert expected in slo_results(rows, LEVEL)["searches"][0]["sentence"]


def test_wilson_interval_holds_what_it_promises() -> None:
    """Of many samples of 12 with a true share of 0.8, about 95 % have the true share within their interval."""
    rng = random.Random(1)
    hits = 0
    for _ in range(2000):
        interval = ShareInterval.of(sum(rng.random() < 0.8 for _ in range(12)), 12)
        hits += interval.low <= 0.8 <= interval.high
    assert 0.92 < hits / 2000 < 0.99
    assert ShareInterval.of(12, 12).high == 1.0 and ShareInterval.of(12, 12).low == pytest.approx(0.7575, abs=1e-3)


def test_a_search_at_the_fake_worker_is_rows_and_survives_a_cut(tmp_path: Path) -> None:
    """The fake worker keeps the level up to 5 in flight; a search cut short and continued has the same rows."""
    options: dict[str, Any] = {"slo_seconds": LEVEL_SECONDS, "search": "max_concurrency", "num_prompts": 16}
    plan = tiny_plan(tmp_path, {"max_num_seqs": "8"}, **options)
    whole = run_new_sweep(plan, tmp_path / "whole", SilentProgress(), command="test", worker_command=FAKE_WORKER)
    assert whole.summary["slo"]["searches"][0]["keeps"] == 5
    assert whole.summary["best"][0]["goal"] == "slo"
    assert whole.summary["best"][0]["load"]["max_concurrency"] == 5
    path = tmp_path / "whole" / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:30])
    resume_sweep(tmp_path / "whole", SilentProgress(), worker_command=FAKE_WORKER)
    resumed = [item["row"]["trial_id"] for item in read_trials(path).records]
    assert resumed == [row["trial_id"] for row in whole.rows]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"search": "max_concurrency"}, "needs a --slo"),
        ({"search": "speed", "slo_seconds": LEVEL_SECONDS}, "--search cannot vary"),
        ({"search": "request_rate=1e-300,1", "slo_seconds": LEVEL_SECONDS}, "request_rate must be at least 1e-06"),
        ({"search": "request_rate=1..3", "slo_seconds": LEVEL_SECONDS}, "has no step"),
        ({"search": "request_rate=0,3", "slo_seconds": LEVEL_SECONDS}, "must be at least 1e-06, got 0"),
        (
            {"search": "max_concurrency", "slo_seconds": LEVEL_SECONDS, "max_concurrency": 4},
            "is what --search looks for",
        ),
        (
            {"search": "max_concurrency", "slo_seconds": LEVEL_SECONDS, "boundary": ("max_model_len",)},
            "cannot be used with",
        ),
        ({"burstiness": 0.5}, "needs a --request-rate"),
        ({"num_prefixes": 2}, "needs a --prefix-len"),
        ({"workload": "trace.csv", "input_len": "12"}, "cannot be used with --workload"),
        ({"num_runs": 101}, "at most 100"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        SweepOptions(model="gpt2", **options)
