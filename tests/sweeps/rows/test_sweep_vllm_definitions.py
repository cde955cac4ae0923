"""TTFT, TPOT, ITL, end-to-end latency and goodput are vLLM's to the last digit, on a recorded run's token times.

``token_times_gpt2.json`` holds the times of a run, and beside them the figures that ``calculate_metrics`` of
vllm/benchmarks/serve.py gave for them (commit in the file). Equality is exact: the same sums in the same order.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.sweeps.worker.metrics import RequestTrace, goodput_figures, serving_figures

RECORD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "token_times_gpt2.json").read_text())


def recorded_traces() -> list[RequestTrace]:
    return [
        RequestTrace(
            f"request-{number}", entry["num_prompt_tokens"], entry["arrival_seconds"], entry["token_times"], True
        )
        for number, entry in enumerate(RECORD["requests"])
    ]


@pytest.mark.parametrize("name", sorted(RECORD["vllm_figures"]))
def test_figure_is_vllms(name: str) -> None:
    assert serving_figures(recorded_traces(), RECORD["duration"])[name] == RECORD["vllm_figures"][name]


def test_goodput_is_vllms() -> None:
    """A request is good within every bound, bounds included; one with a single token has a TPOT of 0."""
    figures = goodput_figures(
        recorded_traces(),
        RECORD["duration"],
        {name: bound / 1000 for name, bound in RECORD["goodput_bounds_ms"].items()},
    )
    assert figures["request_goodput"] == RECORD["request_goodput"]
    assert figures["goodput_pct"] == 100 * RECORD["num_good"] / len(RECORD["requests"])
    assert 0 < RECORD["num_good"] < len(RECORD["requests"])


def test_the_record_has_what_the_definitions_differ_in() -> None:
    """Requests with one token have no TPOT but a TTFT, and several tokens of one request never share an instant."""
    lengths = [len(entry["token_times"]) for entry in RECORD["requests"]]
    assert 1 in lengths and max(lengths) > 10
    times = [entry["token_times"] for entry in RECORD["requests"]]
    assert all(a < b for of_one in times for a, b in itertools.pairwise(of_one))
