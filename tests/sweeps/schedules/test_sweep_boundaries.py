"""Boundaries that a sweep's rows show, and the frontier that it searches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvplan.runs.answers.best_settings import best_settings
from kvplan.runs.answers.boundaries import find_boundaries
from kvplan.runs.answers.summary import find_violations, kv_waste, prediction_errors
from kvplan.runs.rows import empty_row
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.schedules.boundary_search import frontier_utilizations, make_search


def row(status: str = "ok", **values: Any) -> dict[str, Any]:
    settings = {
        "gpu_memory_utilization": 0.9, "max_num_seqs": 16, "block_size": 16, "max_model_len": 512,
        "max_num_batched_tokens": 512, "dtype": "float32", "kv_cache_dtype": "float32",
    }  # fmt: skip
    measured = {
        "output_throughput": 100.0,
        "median_tpot_ms": 5.0,
        "p99_ttft_ms": 50.0,
        "num_clipped_prompts": 0,
        "failed": 0,
    }
    served = measured if status in ("ok", "queued", "preempted") else {}
    return empty_row() | settings | served | {"status": status, "trial_id": "t", "run_number": 1} | values


def test_the_context_boundary_names_both_sides_and_the_engines_own_limit() -> None:
    rows = [
        row(max_model_len=128),
        row("preempted", max_model_len=256),
        row("rejected_ctx", max_model_len=512, largest_max_model_len=400),
        row("rejected_ctx", max_model_len=1024, largest_max_model_len=400),
    ]
    (boundary,) = find_boundaries(rows)
    assert (boundary.kind, boundary.starts, boundary.holds, boundary.fails) == ("largest_max_model_len", 256, 128, 512)
    assert boundary.exact == 400
    assert "256" in boundary.sentence and "512" in boundary.sentence


def test_a_context_beyond_the_models_positions_is_not_said_to_be_the_pools_limit() -> None:
    refused = row("rejected_ctx", max_model_len=2048, largest_max_model_len=1024, context_limited_by="model")
    (boundary,) = find_boundaries([row(max_model_len=128), refused])
    assert boundary.exact is None
    assert boundary.sentence.endswith("starts up to 128 tokens, fails at 2,048; the model has 1,024 positions")
    tight = row("rejected_ctx", max_model_len=512, largest_max_model_len=400, context_limited_by="pool")
    (boundary,) = find_boundaries([row(max_model_len=128), tight, refused])
    assert (boundary.exact, boundary.sentence.rpartition("; ")[2]) == (400, "the pool holds 400 tokens")


def test_a_line_that_never_starts_has_no_boundary_value_but_is_said() -> None:
    rows = [row("oom_weights", max_model_len=length) for length in (128, 256)]
    (boundary,) = find_boundaries(rows)
    assert (boundary.starts, boundary.fails) == (None, 128)
    assert "fails at every context tried, 128 and up" in boundary.sentence


def test_utilization_has_a_lower_and_an_upper_boundary() -> None:
    by_status = {0.1: "oom_weights", 0.2: "rejected_ctx", 0.3: "preempted", 0.6: "ok", 0.95: "oom_runtime"}
    boundaries = find_boundaries([row(status, gpu_memory_utilization=value) for value, status in by_status.items()])
    lowest, highest = boundaries
    assert (lowest.kind, lowest.starts, lowest.holds, lowest.fails) == ("lowest_gpu_memory_utilization", 0.3, 0.6, 0.2)
    assert (highest.kind, highest.starts, highest.fails) == ("highest_gpu_memory_utilization", 0.6, 0.95)


def test_the_knee_is_the_smallest_batch_within_five_percent_and_where_it_hurts_is_named() -> None:
    speeds = {1: 20.0, 2: 40.0, 4: 77.0, 8: 80.0, 16: 60.0}
    rows = [row(max_num_seqs=number, output_throughput=speed) for number, speed in speeds.items()]
    (knee,) = find_boundaries(rows)
    assert (knee.kind, knee.starts, knee.fails) == ("knee_max_num_seqs", 4, 16)


def test_a_busy_machine_is_no_decline() -> None:
    """The trial of 16 sequences ran while others used half of the CPU: nothing says that it is slower than 8."""
    speeds = {4: 77.0, 8: 120.0, 16: 30.0}
    rows = [
        row(
            max_num_seqs=number,
            output_throughput=speed,
            trial_id=str(number),
            other_cpu_pct=60.0 if number == 16 else 1.0,
        )
        for number, speed in speeds.items()
    ]
    (knee,) = find_boundaries(rows)
    assert (knee.starts, knee.fails) == (8, None)
    (knee,) = find_boundaries([each | {"other_cpu_pct": 60.0} for each in rows])  # nothing quieter to go by
    assert (knee.starts, knee.fails) == (8, 16)


def test_a_setting_starts_only_if_every_run_of_it_did() -> None:
    rows = [row(max_model_len=128), row(max_model_len=256), row("oom_runtime", max_model_len=256, run_number=2)]
    (boundary,) = find_boundaries(rows)
    assert (boundary.starts, boundary.fails) == (128, 256)


def test_a_failure_that_breaks_monotony_is_flagged() -> None:
    by_status = {0.3: "ok", 0.5: "oom_runtime", 0.7: "ok"}
    (violation,) = find_violations([row(status, gpu_memory_utilization=value) for value, status in by_status.items()])
    assert (violation["worked"], violation["failed"]) == (0.3, 0.5)
    assert find_violations([row(max_model_len=128), row("rejected_ctx", max_model_len=256)]) == []
    (violation,) = find_violations([row("rejected_ctx", max_model_len=128), row(max_model_len=256)])
    assert (violation["worked"], violation["failed"]) == (256, 128)


def test_best_settings_prefer_trials_that_served_what_was_asked() -> None:
    rows = [
        row(max_num_seqs=4, output_throughput=90.0, trial_id="whole"),
        row("preempted", max_num_seqs=8, output_throughput=99.0, trial_id="preempted"),
        row(max_num_seqs=16, output_throughput=98.0, num_clipped_prompts=3, trial_id="clipped"),
    ]
    assert best_settings(rows, "m")[0]["trial_id"] == "whole"
    assert best_settings(rows[1:2], "m")[0]["trial_id"] == "preempted"
    assert best_settings([row("oom_weights")], "m") == []


def test_best_settings_take_medians_over_runs() -> None:
    speeds = {4: (50.0, 60.0, 200.0), 8: (70.0, 71.0, 72.0)}
    rows = [
        row(max_num_seqs=number, output_throughput=speed, run_number=run)
        for number, three in speeds.items()
        for run, speed in enumerate(three, start=1)
    ]
    best = best_settings(rows, "m")[0]
    assert (best["settings"]["max_num_seqs"], best["figures"]["output_throughput"], best["num_runs"]) == (8, 71.0, 3)


def test_waste_is_told_for_the_default_block_size_beside_contiguous_reservation() -> None:
    rows = [
        row(block_size=8, frag_pct=1.5, contiguous_utilization_pct=20.0),
        row(block_size=16, frag_pct=3.5, contiguous_utilization_pct=21.0, output_throughput=90.0),
        row("preempted", block_size=16, frag_pct=9.0, contiguous_utilization_pct=9.0),
        row(block_size=None, frag_pct=9.0),
        row(max_model_len=None, frag_pct=9.0),
    ]
    waste = kv_waste(rows)
    assert waste is not None
    assert (waste["block_size"], waste["paged_waste_pct"], waste["contiguous_utilization_pct"]) == (16, 3.5, 21.0)
    assert [entry["block_size"] for entry in waste["by_block_size"]] == [8, 16]


def test_prediction_errors_compare_only_what_was_allocated() -> None:
    pool = {"num_blocks_total": 100, "block_bytes": 8, "block_bytes_predicted": 8}
    rows = [
        row(**pool, num_blocks_predicted=100, predicted_status="ok", pred_output_throughput=110.0),
        row(**pool, num_blocks_predicted=99, predicted_status="preempted", pred_output_throughput=100.0),
        row("oom_weights", predicted_status="oom_weights", num_blocks_predicted=0),
        row("crash", predicted_status="ok", num_blocks_predicted=7),
    ]
    errors = prediction_errors(rows)
    assert (errors["num_compared"], errors["block_bytes_equal"], errors["num_blocks_equal"]) == (2, 2, 1)
    assert errors["num_blocks_max_error_pct"] == 1.0
    assert (errors["outcomes_equal"], errors["num_outcomes_compared"]) == (2, 3)
    assert errors["output_throughput_median_error_pct"] == 5.0


BASE = TrialSettings(0.9, 8, 16, 64, 512)


class Rising:
    """Contexts of 1,000 tokens for every hundredth of utilization beyond 0.2."""

    spec = SimpleNamespace(max_position_embeddings=4096)

    def memory(self, settings: TrialSettings) -> Any:
        fits = settings.max_model_len <= 100_000 * (settings.gpu_memory_utilization - 0.2) + 1e-6
        return SimpleNamespace(outcome="ok" if fits else "rejected_ctx")


def test_the_frontier_is_searched_where_it_is_expected_to_rise() -> None:
    """Not in steps of 0.12, of which at most one lies there."""
    predictor: Any = Rising()
    (search,) = make_search(["max_model_len*gpu_memory_utilization"], {}, BASE, predictor, 0).searches
    shares = [line[0].gpu_memory_utilization for line in search.lines]
    assert shares == [0.193, 0.201, 0.209, 0.217, 0.225, 0.233, 0.241, 0.249]
    starting = [sum(predictor.memory(settings).outcome == "ok" for settings in line) for line in search.lines]
    assert starting[0] == 0 and starting[-1] == 64 and len(set(starting)) == 7


def test_a_frontier_that_never_rises_has_no_values() -> None:
    predictor: Any = Rising()
    assert frontier_utilizations(BASE, 200_000, 300_000, predictor) == []
    assert frontier_utilizations(BASE, 64, 64, predictor) == []


def test_given_utilizations_stay() -> None:
    predictor: Any = Rising()
    axes = {"gpu_memory_utilization": (0.3, 0.6)}
    (search,) = make_search(["max_model_len*gpu_memory_utilization"], axes, BASE, predictor, 0).searches
    assert [line[0].gpu_memory_utilization for line in search.lines] == [0.3, 0.6]
