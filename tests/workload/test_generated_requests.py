"""Requests: the same for the same seed, clipped to the trial's context, read from the files people have."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from kvplan.errors import UsageError
from kvplan.workload.lengths import Lengths
from kvplan.workload.requests import (
    RequestSpec,
    WorkloadSpec,
    clip_requests,
    generate_requests,
    prompt_token_ids,
)

SPEC = WorkloadSpec(50, Lengths(10, 90), Lengths(2, 9), seed=7)


def test_same_seed_same_requests_and_another_seed_others() -> None:
    assert generate_requests(SPEC) == generate_requests(WorkloadSpec.from_json(SPEC.as_json()))
    assert generate_requests(SPEC) != generate_requests(WorkloadSpec(50, Lengths(10, 90), Lengths(2, 9), seed=8))


def test_lengths_cover_their_range_and_no_more() -> None:
    requests = generate_requests(WorkloadSpec(2000, Lengths(3, 6), Lengths(2, 2)))
    assert {request.num_prompt_tokens for request in requests} == {3, 4, 5, 6}
    assert {request.num_output_tokens for request in requests} == {2}
    assert {request.arrival_seconds for request in requests} == {0.0}


def test_clipping_keeps_prompt_and_output_within_the_context_and_counts() -> None:
    requests = [RequestSpec(0, 100, 20), RequestSpec(1, 30, 20), RequestSpec(2, 10, 200)]
    clipped = clip_requests(requests, 64)
    assert [(item.num_prompt_tokens, item.num_output_tokens) for item in clipped.requests] == [
        (44, 20),
        (30, 20),
        (1, 63),
    ]
    assert clipped.num_clipped == 2


def test_a_clipped_prompt_is_a_prefix_of_the_whole_one() -> None:
    whole = prompt_token_ids(5, RequestSpec(3, 40, 1), 1000)
    assert prompt_token_ids(5, RequestSpec(3, 12, 1), 1000) == whole[:12]
    assert prompt_token_ids(5, RequestSpec(4, 40, 1), 1000) != whole
    assert prompt_token_ids(6, RequestSpec(3, 40, 1), 1000) != whole


def read(path: Path, count: int = 10) -> list[tuple[int, int, float]]:
    spec = WorkloadSpec(count, Lengths(1, 1), Lengths(1, 1), file=str(path))
    return [(item.num_prompt_tokens, item.num_output_tokens, item.arrival_seconds) for item in generate_requests(spec)]


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"input_len": 12, "output_len": 3}\n\n{"prompt_token_ids": [1, 2, 3], "output_len": 4}\n')
    assert read(path) == [(12, 3, 0.0), (3, 4, 0.0)]
    assert read(path, 1) == [(12, 3, 0.0)]


def test_times_that_are_all_equal_are_no_pattern_to_rescale(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_seconds,input_len,output_len\n" + "5,3,4\n" * 8)
    spec = WorkloadSpec(8, Lengths(1, 1), Lengths(1, 1), request_rate=2.0, file=str(path))
    times = [request.arrival_seconds for request in generate_requests(spec)]
    assert times[0] > 0 and times[-1] == pytest.approx(4)
    assert [seconds for _, _, seconds in read(path)] == [0.0] * 8


def test_gaps_are_equal_or_refused_at_the_ends_of_burstiness() -> None:
    spec = WorkloadSpec(4, Lengths(1, 1), Lengths(1, 1), request_rate=2.0, burstiness=math.inf)
    assert [request.arrival_seconds for request in generate_requests(spec)] == [0.5, 1.0, 1.5, 2.0]
    with pytest.raises(UsageError, match="A burstiness of 1e-08 is too low: all 4 requests would arrive"):
        generate_requests(replace(spec, burstiness=1e-8))


@pytest.mark.parametrize("text", [
    "", "9..3", "..", "1..2..3", "many", "0", "9" * 20, "1..200000000",
    "lognormal:200", "lognormal:200:0", "lognormal:200:x", "lognormal:a:1",
])  # fmt: skip
def test_malformed_lengths(text: str) -> None:
    with pytest.raises(UsageError):
        Lengths.parse("--input-len", text)


def test_log_normal_lengths_have_the_median_and_spread_they_are_given() -> None:
    lengths = Lengths.parse("--input-len", "lognormal:200:0.8")
    drawn = [item.num_prompt_tokens for item in generate_requests(WorkloadSpec(4000, lengths, Lengths(1, 1)))]
    logarithms = [math.log(length) for length in drawn]
    assert statistics.median(drawn) == pytest.approx(200, rel=0.05)
    assert statistics.stdev(logarithms) == pytest.approx(0.8, rel=0.05)
    assert statistics.mean(drawn) == pytest.approx(200 * math.exp(0.8**2 / 2), rel=0.08)
    assert (lengths.first, lengths.last) == (1, 3200)
    assert min(drawn) >= 1 and max(drawn) <= 3200


def test_bounds_of_log_normal_lengths_move_what_lies_outside() -> None:
    lengths = Lengths.parse("--output-len", "lognormal:100:1:64..256")
    drawn = [item.num_output_tokens for item in generate_requests(WorkloadSpec(2000, Lengths(1, 1), lengths))]
    assert (min(drawn), max(drawn)) == (64, 256)
    assert lengths.as_text() == "lognormal:100:1:64..256"
    assert Lengths.parse("--output-len", "lognormal:100:1").as_text() == "lognormal:100:1"
    assert Lengths.parse("--input-len", "lognormal:9:1:5") == Lengths(5, 5, 9, 1.0)


def test_uniform_and_fixed_lengths_have_their_mean() -> None:
    uniform = generate_requests(WorkloadSpec(4000, Lengths(100, 300), Lengths(7, 7)))
    assert statistics.mean(item.num_prompt_tokens for item in uniform) == pytest.approx(200, rel=0.02)
    assert statistics.pstdev(item.num_prompt_tokens for item in uniform) == pytest.approx(201 / math.sqrt(12), rel=0.04)
    assert {item.num_output_tokens for item in uniform} == {7}


def gaps_of(burstiness: float) -> list[float]:
    spec = WorkloadSpec(4000, Lengths(1, 1), Lengths(1, 1), request_rate=5.0, burstiness=burstiness)
    times = [item.arrival_seconds for item in generate_requests(spec)]
    assert times[-1] == pytest.approx(4000 / 5.0)
    return [later - earlier for earlier, later in itertools.pairwise([0.0, *times])]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_between_arrivals_are_gamma_distributed(burstiness: float) -> None:
    """vLLM's definition: shape = burstiness, mean = 1 / rate; so their coefficient of variation is 1 / sqrt(shape)."""
    gaps = gaps_of(burstiness)
    mean = statistics.mean(gaps)
    assert mean == pytest.approx(0.2, rel=0.01)
    assert statistics.pstdev(gaps) / mean == pytest.approx(1 / math.sqrt(burstiness), rel=0.08)
    if burstiness == 1.0:  # a Poisson process: exponential gaps
        assert sum(gap > 0.2 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.02)


def test_another_rate_is_the_same_pattern_stretched() -> None:
    """A search over rates compares like with like."""
    slow, fast = (
        generate_requests(WorkloadSpec(60, Lengths(5, 90), Lengths(2, 9), request_rate=rate)) for rate in (2.0, 8.0)
    )
    assert [item.num_prompt_tokens for item in slow] == [item.num_prompt_tokens for item in fast]
    for one, other in zip(slow, fast, strict=True):
        assert one.arrival_seconds == pytest.approx(4 * other.arrival_seconds)


def test_shared_prefixes_are_shared_in_turn_and_nothing_else_is() -> None:
    spec = WorkloadSpec(9, Lengths(20, 40), Lengths(2, 2), num_prefixes=3, prefix_len=64)
    requests = generate_requests(spec)
    prompts = [prompt_token_ids(0, request, 5000) for request in requests]
    assert [len(prompt) for prompt in prompts] == [request.num_prompt_tokens for request in requests]
    heads = [tuple(prompt[:64]) for prompt in prompts]
    assert len(set(heads)) == 3
    assert heads[0] == heads[3] == heads[6] and heads[1] == heads[4] and heads[2] == heads[5]
    assert len({tuple(prompt[64:72]) for prompt in prompts}) == 9
    assert all(84 <= len(prompt) <= 104 for prompt in prompts)
    (short,) = clip_requests(requests[:1], 50).requests
    assert (short.num_prompt_tokens, short.num_prefix_tokens) == (48, 48)
    assert prompt_token_ids(0, short, 5000) == prompts[0][:48]
    assert "one of 3 prefixes of 64 tokens" in spec.as_text()


def test_a_trace_keeps_its_times_or_is_stretched_to_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_seconds,input_len,output_len\n5,472,18\n45,1087,230\n85,417,276\n")
    assert read(path) == [(472, 18, 0.0), (1087, 230, 40.0), (417, 276, 80.0)]
    spec = WorkloadSpec(10, Lengths(1, 1), Lengths(1, 1), file=str(path), request_rate=1.5)
    assert [item.arrival_seconds for item in generate_requests(spec)] == [0.0, 1.0, 2.0]
    assert "arriving as in the file" in WorkloadSpec(3, Lengths(1, 1), Lengths(1, 1), file=str(path)).as_text()
