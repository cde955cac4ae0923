"""Every engine's page becomes the same reading, and two of them a window with percentiles from histograms."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from metric_pages import (
    LLAMACPP_PAGE,
    SGLANG_PAGE,
    TRTLLM_ITERATIONS,
    TRTLLM_PAGE,
    VLLM_0_8_PAGE,
    VLLM_LABELS,
    vllm_page,
)

from kvplan.metrics.histograms import Histogram
from kvplan.metrics.page import read_page
from kvplan.metrics.prometheus import parse_samples
from kvplan.metrics.reading import ServerReading
from kvplan.metrics.source import read_iterations, with_slots
from kvplan.metrics.window import difference

RECORDED = Path(__file__).parent / "recorded"


def read(text: str) -> ServerReading:
    reading = read_page(text)
    assert reading is not None
    return reading


def test_labels_with_braces_quotes_and_backslashes_are_read_whole() -> None:
    samples = parse_samples('a{x="1}{\\"2\\"",y="c:\\\\d\\ne"} 3.5 1700000000\nb 1e3\n# b 7\nbroken{x="1} 2\nc NaN\n')
    assert samples["a"][0].labels == {"x": '1}{"2"', "y": "c:\\d\ne"}
    assert samples["a"][0].value == 3.5
    assert samples["b"][0].value == 1000.0
    assert "broken" not in samples


def test_a_page_of_vllm() -> None:
    reading = read(
        vllm_page(preemptions=4, hits=30, queries=120, generation_tokens=77, ttft=[0.03, 0.2], itl=[0.02] * 4)
    )
    assert (reading.engine, reading.model_names) == ("vllm", ("meta-llama/Llama-3.1-8B",))
    assert (reading.num_running, reading.num_waiting, reading.kv_cache_usage) == (3, 2, 0.42)
    assert reading.waiting_by_reason == {"capacity": 2.0, "deferred": 0.0}
    assert (reading.num_preemptions, reading.prefix_cache_hits, reading.prefix_cache_queries) == (4, 30, 120)
    assert reading.prefix_unit == "tokens"
    assert reading.num_finished == {"stop": 1.0, "length": 4.0, "abort": 0.0}
    assert reading.ttft is not None and reading.ttft.mean == pytest.approx(0.115)
    assert reading.iteration_tokens is not None and reading.iteration_tokens.count == 2
    assert reading.cache.kv_cache_size_tokens == 8064
    assert (reading.cache.num_blocks, reading.cache.block_size, reading.cache.max_concurrency) == (505, 16, 15.75)
    assert (reading.cache.cache_dtype, reading.cache.enable_prefix_caching) == ("auto", True)


def test_a_missing_metric_is_unknown_and_not_zero() -> None:
    reading = read("vllm:num_requests_running 0.0\n")
    assert reading.num_running == 0
    assert (reading.num_waiting, reading.kv_cache_usage, reading.num_preemptions, reading.ttft) == (None,) * 4
    assert reading.cache.num_blocks is None


def test_the_names_of_vllm_0_8() -> None:
    reading = read(VLLM_0_8_PAGE)
    assert (reading.kv_cache_usage, reading.prefix_cache_queries, reading.prefix_unit) == (0.25, 80, "blocks")
    assert reading.itl is not None and reading.itl.count == 10


@pytest.mark.parametrize("prefix", ["ray_vllm:", "ray_vllm_"])
def test_ray_serves_names(prefix: str) -> None:
    assert read(vllm_page(prefix=prefix)).kv_cache_usage == 0.42


def test_data_parallel_engines_are_added_and_the_fullest_pool_is_kept() -> None:
    second = vllm_page(labels=VLLM_LABELS.replace('"0"', '"1"'), usage=0.98, running=5.0, ttft=[0.3])
    reading = read(vllm_page(ttft=[0.03]) + second)
    assert (reading.num_engines, reading.num_running) == (2, 8)
    assert (reading.kv_cache_usage, reading.kv_cache_usage_highest) == (pytest.approx(0.70), 0.98)
    assert reading.ttft is not None and reading.ttft.count == 2
    assert list(reading.engines) == ["0", "1"]
    for engine, usage, running in zip(reading.engines.values(), (0.42, 0.98), (3, 5), strict=True):
        assert (engine.num_engines, engine.kv_cache_usage, engine.num_running) == (1, usage, running)
        assert engine.ttft is not None and engine.ttft.count == 1
        assert engine.seconds == reading.seconds and not engine.engines
    assert reading.as_json()["engines"]["1"]["ttft"]["count"] == 1


def test_one_engine_is_not_listed_by_itself() -> None:
    assert read(vllm_page()).engines == {}


def test_engines_are_in_the_order_of_their_numbers() -> None:
    pages = [vllm_page(labels=VLLM_LABELS.replace('"0"', f'"{number}"')) for number in (10, 9, 2)]
    assert list(read("".join(pages)).engines) == ["2", "9", "10"]


def test_a_page_with_kvplans_own_metrics_is_kvplans() -> None:
    assert read(vllm_page() + 'kvplan:kv_blocks{state="used"} 12.0\n').engine == "kvplan"


def test_sglangs_ranks_and_priorities_are_not_counted_twice() -> None:
    reading = read(SGLANG_PAGE)
    assert (reading.num_engines, reading.num_running, reading.num_waiting) == (2, 8, 3)
    assert (reading.kv_cache_usage, reading.kv_cache_usage_highest) == (pytest.approx(0.7), 0.9)
    assert (reading.cache.kv_cache_size_tokens, reading.cache.block_size) == (120_000, 16)
    assert (reading.prefix_cache_hits, reading.prefix_cache_queries) == (1000, 4000)


def test_sglangs_gauge_of_retracted_requests_is_no_count_of_preemptions() -> None:
    assert read(SGLANG_PAGE).num_preemptions is None
    assert read(SGLANG_PAGE + "sglang:num_retracted_requests_total 6.0\n").num_preemptions == 6


def test_llama_cpp_counts_cached_prompt_tokens_apart() -> None:
    reading = read(LLAMACPP_PAGE)
    assert (reading.num_running, reading.num_waiting, reading.generation_tokens) == (1, 4, 100)
    assert (reading.prompt_tokens, reading.prefix_cache_queries, reading.prefix_cache_hits) == (1000, 1000, 800)
    assert reading.kv_cache_usage is None


def test_a_page_and_slots_recorded_from_llama_server() -> None:
    """b11434 built from source, SmolLM2, 4 slots of 1,024 tokens, three of them generating."""
    page = read((RECORDED / "llamacpp_b11434.txt").read_text())
    assert (page.engine, page.num_running, page.num_waiting, page.prompt_tokens) == ("llamacpp", 3, 0, 21)
    slots = json.loads((RECORDED / "llamacpp_b11434_slots.json").read_text())
    reading = with_slots(page, slots)
    assert (reading.num_slots, reading.slot_tokens, reading.kv_cache_used_tokens) == (4, 1024, 105 + 107 + 108)
    assert reading.kv_cache_usage is None, "whether slots share a pool is told nowhere"
    idle = [{**slot, "is_processing": False} for slot in slots]
    assert with_slots(page, idle).kv_cache_used_tokens == 0, "what an idle slot keeps is given up for the next sequence"


@pytest.mark.parametrize(
    "slots", [None, [], {}, [1], [{"is_processing": True}], [{"is_processing": True, "n_ctx": "8"}]]
)
def test_slots_that_tell_no_tokens_leave_them_unknown(slots: object) -> None:
    reading = with_slots(read(LLAMACPP_PAGE), slots)
    assert (reading.kv_cache_used_tokens, reading.slot_tokens) == (None, None)


def test_pages_of_tensorrt_llm() -> None:
    reading = read(TRTLLM_PAGE)
    assert (reading.engine, reading.kv_cache_usage, reading.max_num_seqs) == ("trtllm", 0.75, 64)
    assert (reading.cache.num_blocks, reading.cache.kv_cache_size_tokens) == (1000, 32_000)
    iterations = read_iterations(TRTLLM_ITERATIONS)
    assert iterations is not None
    assert (iterations.num_running, iterations.num_waiting) == (1, 3)
    assert iterations.kv_cache_usage == pytest.approx(3 / 101256)
    assert iterations.kv_cache_used_tokens == 96
    assert read_iterations([]) is None


@pytest.mark.parametrize("value", ["NaN", "nan", "+Inf", "-Inf", "1e400", "1e308"])
def test_what_is_no_finite_figure_is_unknown(value: str) -> None:
    page = vllm_page(ttft=[0.03]).replace("} 0.42", "} " + value)
    page = page.replace('num_gpu_blocks="505"', f'num_gpu_blocks="{value}"')
    assert value in page
    reading = read(page)
    assert (reading.kv_cache_usage, reading.kv_cache_usage_highest, reading.cache.num_blocks) == (None, None, None)
    assert (reading.num_running, reading.cache.block_size) == (3, 16)
    json.dumps(reading.as_json(), allow_nan=False)


@pytest.mark.parametrize("bound", ["nan", "-inf"])
def test_a_histogram_with_a_bound_that_is_no_number_is_unknown(bound: str) -> None:
    reading = read(vllm_page(ttft=[0.03]).replace('le="0.001"', f'le="{bound}"'))
    assert reading.ttft is None


def test_an_engine_number_of_thousands_of_digits_is_read_past() -> None:
    labels = VLLM_LABELS.replace('"0"', '"' + "9" * 5000 + '"')
    assert read(vllm_page() + vllm_page(labels=labels)).num_engines == 2


def test_iterations_without_finite_figures_are_unknown() -> None:
    pool = {"maxNumBlocks": float("inf"), "usedNumBlocks": 10**400, "tokensPerBlock": 32}
    reading = read_iterations([{"kvCacheStats": pool, "numActiveRequests": float("nan")}])
    assert reading is not None
    assert (reading.num_running, reading.kv_cache_usage, reading.cache.num_blocks) == (None, None, None)


def test_a_page_of_something_else_is_not_read() -> None:
    assert read_page("node_cpu_seconds_total 4\n") is None


def test_a_reading_is_plain_json() -> None:
    import json

    text = json.dumps(read(vllm_page(ttft=[0.03])).as_json(), allow_nan=False)
    assert '"p99"' in text


def test_a_page_recorded_from_vllm() -> None:
    """vLLM 0.32.0 for CPUs, after 90 requests of `kvplan load` (2026-11-22)."""
    reading = read((RECORDED / "vllm_0_32_cpu.txt").read_text())
    assert (reading.engine, reading.model_names, reading.num_engines) == ("vllm", ("smol",), 1)
    assert (reading.num_running, reading.num_waiting, reading.kv_cache_usage) == (0, 0, 0)
    assert (reading.prefix_cache_queries, reading.prefix_cache_hits, reading.num_preemptions) == (11121, 0, 0)
    assert (reading.generation_tokens, reading.num_finished["length"]) == (2028, 90)
    assert reading.ttft is not None and reading.ttft.mean == pytest.approx(520.164148569107 / 90)
    assert reading.itl is not None and reading.itl.count == 1938
    assert reading.itl.mean == pytest.approx(233.02073276199553 / 1938)
    assert reading.iteration_tokens is not None and reading.queue_time is not None and reading.e2e_latency is not None
    assert (reading.cache.num_blocks, reading.cache.block_size) == (101, 128)
    assert (reading.cache.kv_cache_size_tokens, reading.cache.max_concurrency) == (12928, 12.625)


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
