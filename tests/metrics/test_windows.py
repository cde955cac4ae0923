"""The window between two readings, and percentiles from histograms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from metric_pages import vllm_page

from kvplan.metrics.histograms import Histogram
from kvplan.metrics.page import read_page
from kvplan.metrics.reading import ServerReading
from kvplan.metrics.window import difference


def reading(seconds: float, **values: object) -> ServerReading:
    found = read_page(vllm_page(**values), seconds)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_percentiles_are_those_of_the_window_alone() -> None:
    slow_before = [5.0] * 1000
    window = difference(reading(10, ttft=slow_before), reading(20, ttft=[*slow_before, *[0.03] * 50, *[0.2] * 50]))
    assert window.ttft is not None
    assert window.ttft.count == 100
    # 50 in (0.02, 0.04], 50 in (0.1, 0.25]: as histogram_quantile interpolates
    assert window.ttft.percentile(25) == pytest.approx(0.03)
    assert window.ttft.percentile(95) == pytest.approx(0.1 + 0.15 * 45 / 50)
    assert window.ttft.percentile_range(95) == (0.1, 0.25)
    assert window.ttft.mean == pytest.approx(0.115)


def test_counters_become_rates_and_shares() -> None:
    before = reading(10, generation_tokens=100, hits=10, queries=100, preemptions=1, finished={"stop": 1})
    after = reading(12, generation_tokens=500, hits=40, queries=160, preemptions=4, finished={"stop": 5, "length": 2})
    window = difference(before, after)
    assert (window.seconds, window.output_throughput, window.num_preemptions) == (2, 200, 3)
    assert window.prefix_hit_rate == 0.5
    assert window.num_finished == {"stop": 4, "length": 2}
    assert window.request_throughput == 3


def test_without_lookups_there_is_no_hit_rate() -> None:
    assert difference(reading(1, queries=7), reading(2, queries=7)).prefix_hit_rate is None


def test_drafts_are_counted_between_two_readings() -> None:
    window = difference(reading(1, accepted=[10, 9, 1]), reading(2, accepted=[30, 25, 5]))
    assert (window.num_drafts, window.num_draft_tokens, window.num_accepted_tokens) == (20, 40, 20)
    assert (window.acceptance_rate, window.mean_acceptance_length) == (0.5, 2.0)
    assert window.accepted_per_position == {"0": 16, "1": 4}
    without = difference(reading(1), reading(2))
    assert (without.num_drafts, without.acceptance_rate, without.mean_acceptance_length) == (None, None, None)


def test_a_server_that_was_started_anew_gives_no_figures() -> None:
    window = difference(reading(1, generation_tokens=100), reading(2, generation_tokens=3))
    assert window.restarted
    assert (window.generation_tokens, window.ttft) == (None, None)


def test_a_counter_that_appears_with_its_first_event_counts_from_zero() -> None:
    before = replace(reading(1), num_rejected=None)
    assert difference(before, replace(reading(2), num_rejected=2.0)).num_rejected == 2


def test_a_missing_counter_stays_unknown() -> None:
    bare = read_page("vllm:num_requests_running 0.0\n", 1.0)
    assert bare is not None
    window = difference(bare, replace(bare, seconds=2.0))
    assert (window.num_preemptions, window.output_throughput, window.ttft) == (None, None, None)


def test_a_percentile_beyond_the_last_bound_is_unknown() -> None:
    histogram = Histogram((0.1, 1.0, math.inf), (90.0, 95.0, 100.0), 60.0)
    assert histogram.percentile(99) is None
    assert histogram.percentile_range(99) == (1.0, math.inf)
    assert histogram.percentile(90) == pytest.approx(0.1)
    assert Histogram((1.0, math.inf), (0.0, 0.0), 0.0).percentile(50) is None
