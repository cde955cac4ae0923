"""The definitions of the figures, against traces that are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kvplan.sweeps.worker.metrics import (
    RequestTrace,
    StepSample,
    downsampled_series,
    goodput_figures,
    occupancy_figures,
    peak_concurrency,
    serving_figures,
    weighted_percentile,
)


def trace(name: str, prompt: int, arrival: float, *times: float, finished: bool = True) -> RequestTrace:
    return RequestTrace(name, prompt, arrival, list(times), finished)


# Three requests; the third has one token only (no TPOT), the fourth failed.
TRACES = [
    trace("a", 10, 0.0, 0.5, 0.7, 1.1),
    trace("b", 20, 0.25, 1.25, 1.5),
    trace("c", 5, 1.0, 1.5),
    trace("d", 7, 1.0, finished=False),
]


def test_figures_of_a_trace_worked_out_by_hand() -> None:
    figures = serving_figures(TRACES, 2.0)
    assert figures["completed"] == 3
    assert figures["failed"] == 1
    assert figures["total_input_tokens"] == 35
    assert figures["total_output_tokens"] == 6
    assert figures["request_throughput"] == 1.5
    assert figures["output_throughput"] == 3.0
    assert figures["total_token_throughput"] == 20.5
    # TTFT: 0.5, 1.0, 0.5 s
    assert figures["mean_ttft_ms"] == pytest.approx(2000 / 3)
    assert figures["median_ttft_ms"] == pytest.approx(500)
    assert figures["p90_ttft_ms"] == pytest.approx(900)  # 500 + 0.8 * 500 between the second and the third
    assert figures["p99_ttft_ms"] == pytest.approx(990)
    # TPOT: (1.1 - 0.5) / 2 = 0.3 and (1.5 - 1.25) / 1 = 0.25 s; a single token has none
    assert figures["mean_tpot_ms"] == pytest.approx(275)
    assert figures["std_tpot_ms"] == pytest.approx(25)
    # ITL: 0.2, 0.4, 0.25 s, pooled
    assert figures["mean_itl_ms"] == pytest.approx(850 / 3)
    assert figures["median_itl_ms"] == pytest.approx(250)
    # latency: 1.1, 1.25, 0.5 s
    assert figures["median_e2el_ms"] == pytest.approx(1100)
    assert figures["max_concurrent_requests"] == 3


def test_percentiles_and_spread_are_numpys() -> None:
    rng = np.random.default_rng(3)
    traces = [trace(str(index), 1, 0.0, *np.cumsum(rng.random(5))) for index in range(40)]
    figures = serving_figures(traces, 10.0)
    ttfts = np.array([item.token_times[0] for item in traces]) * 1000
    assert figures["p99_ttft_ms"] == pytest.approx(np.percentile(ttfts, 99), rel=1e-12)
    assert figures["std_ttft_ms"] == pytest.approx(np.std(ttfts), rel=1e-12)


def test_goodput_counts_requests_within_every_objective() -> None:
    # TTFT 500, 1000, 500 ms; TPOT 300, 250 ms and none; the fourth request failed
    figures = goodput_figures(TRACES, 2.0, {"ttft": 0.6})
    assert (figures["request_goodput"], figures["goodput_pct"], figures["slo_pass"]) == (1.0, 50.0, False)
    figures = goodput_figures(TRACES[:3], 2.0, {"ttft": 1.001, "tpot": 0.28})
    assert (figures["request_goodput"], figures["slo_pass"]) == (1.0, False)
    figures = goodput_figures(TRACES[:3], 2.0, {"ttft": 1.001, "tpot": 0.301, "e2el": 1.251})
    assert (figures["goodput_pct"], figures["slo_pass"]) == (100.0, True)
    assert goodput_figures(TRACES, 2.0, {}) == {}


def test_nothing_completed_has_no_latency() -> None:
    figures = serving_figures([trace("a", 3, 0.0, finished=False)], 1.0)
    assert figures["completed"] == 0
    assert figures["mean_ttft_ms"] is None


def test_a_departure_comes_before_an_arrival_at_the_same_instant() -> None:
    assert peak_concurrency([trace("a", 1, 0.0, 1.0), trace("b", 1, 1.0, 2.0)]) == 1
    assert peak_concurrency([trace("a", 1, 0.0, 1.0), trace("b", 1, 0.9, 2.0)]) == 2


def sample(seconds: float, step: float, running: int, blocks: int, tokens: int, waiting: int = 0) -> StepSample:
    return StepSample(seconds, step, running, waiting, blocks, tokens, tokens, running)


def test_occupancy_weighs_steps_by_their_time() -> None:
    # 1 s with 4 of 10 blocks holding 48 tokens, 3 s with 2 blocks holding 20; blocks of 16 slots
    samples = [sample(1.0, 1.0, 2, 4, 48, waiting=5), sample(4.0, 3.0, 1, 2, 20)]
    figures = occupancy_figures(samples, num_blocks=10, block_size=16, block_bytes=1600, max_model_len=100)
    assert figures["kv_usage_mean"] == pytest.approx((0.4 + 3 * 0.2) / 4)
    assert figures["kv_usage_max"] == pytest.approx(0.4)
    assert figures["kv_usage_p95"] == pytest.approx(0.4)
    wasted = (64 - 48) * 1 + (32 - 20) * 3
    assert figures["frag_pct"] == pytest.approx(100 * wasted / (64 + 3 * 32))
    assert figures["internal_frag_bytes_mean"] == pytest.approx(wasted / 4 * 100)
    # contiguous: 2 sequences reserve 200 slots for 1 s, 1 sequence 100 slots for 3 s
    assert figures["contiguous_utilization_pct"] == pytest.approx(100 * (48 + 3 * 20) / (200 + 300))
    assert figures["max_running"] == 2
    assert figures["max_waiting"] == 5


def test_weighted_percentile() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 98.0, 1.0])
    assert weighted_percentile(values, weights, 95) == 1.0
    assert weighted_percentile(values, weights, 98.5) == 2.0
    assert weighted_percentile(values, weights, 100) == 3.0


def test_series_is_short_and_keeps_peaks() -> None:
    samples = [sample((index + 1) * 0.1, 0.1, 1, 7 if index == 555 else 1, 16) for index in range(1000)]
    series = downsampled_series(samples, num_blocks=10)
    assert {len(values) for values in series.values()} == {len(series["seconds"])}
    assert len(series["seconds"]) <= 400
    assert max(series["kv_usage"]) == pytest.approx(0.7)
    assert series["seconds"][-1] == pytest.approx(100.0)
    assert series["output_tokens_per_second"][0] == pytest.approx(10.0)
