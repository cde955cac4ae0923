"""``--measured``: a result of a user's own server scales what is predicted for it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import kvplan
from kvplan.errors import KvplanError, UsageError

_RESULT: dict[str, Any] = {
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 96,
    "request_rate": "inf",
    "max_concurrency": 16,
    "duration": 30.0,
    "completed": 96,
    "failed": 0,
    "total_input_tokens": 96 * 1000,
    "total_output_tokens": 96 * 200,
    "mean_ttft_ms": 370.0,
    "median_ttft_ms": 350.0,
    "mean_tpot_ms": 14.0,
    "median_tpot_ms": 14.0,
}
"""As ``vllm bench serve --save-result`` has it: 16 at once on an H100, both times two thirds longer than predicted."""


def _saved(folder: Path, **more: Any) -> Path:
    path = folder / "result.json"
    path.write_text(json.dumps(_RESULT | more))
    return path


def _plan(**more: Any) -> dict[str, Any]:
    found = kvplan.plan("llama-3.1-8b", users=32, input_len=1000, output_len=200, gpu="h100-sxm", **more).to_dict()
    best = next(each for each in found["deployments"] if each["num_gpus"] == 1)
    return dict(best, assumptions=found["assumptions"])


def test_a_plan_is_as_much_slower_as_the_server_and_surer(tmp_path: Path) -> None:
    before, after = _plan(), _plan(measured=_saved(tmp_path))
    assert before["performance"]["scaled_by"] is None
    scaled = after["performance"]["scaled_by"]
    assert 1.4 < scaled["kernels"] < 2
    assert re.search(r"TPOT 14\.0 ms measured, [789]\.\d predicted", scaled["note"])
    assert f"Times are {scaled['note']}." in after["assumptions"]
    low, middle, high = after["queueing"]["tpot_p50_ms"]
    was_low, was_middle, was_high = before["queueing"]["tpot_p50_ms"]
    assert middle == pytest.approx(scaled["kernels"] * was_middle, rel=0.05)
    assert high / low < was_high / was_low


def test_an_estimate_is_scaled_too_and_says_so(tmp_path: Path) -> None:
    before, after = (
        kvplan.estimate("llama-3.1-8b", gpu="h100-sxm", ctx="8k", **more)
        for more in ({}, {"measured": [_saved(tmp_path)]})
    )
    alone = [each.to_dict()["deployments"][0]["performance"]["queueing_alone"] for each in (before, after)]
    assert alone[1]["tpot_p50_ms"][1] > 1.1 * alone[0]["tpot_p50_ms"][1]
    assert "scaled by your measurement on 1 x h100-sxm" in " ".join(str(after).split())
    assert "scaled by" not in str(before)


def test_another_layout_is_scaled_with_the_interval_that_it_had(tmp_path: Path) -> None:
    asked = {"ctx": "8k", "gpu": ["h100-sxm", "2xh100-sxm"]}
    path = _saved(tmp_path, tp=1)
    before, after = (
        kvplan.estimate("llama-3.1-8b", **asked, **more).to_dict()["deployments"]  # type: ignore[arg-type]
        for more in ({}, {"measured": path})
    )

    def width(deployment: dict[str, Any]) -> float:
        low, _, high = deployment["performance"]["queueing_alone"]["tpot_p50_ms"]
        return float(high / low)

    assert width(after[0]) < width(before[0])
    assert width(after[1]) > 0.95 * width(before[1])
    tpots = [each[1]["performance"]["queueing_alone"]["tpot_p50_ms"][1] for each in (before, after)]
    scale = after[1]["performance"]["scaled_by"]["kernels"]
    assert scale > 1.1
    assert tpots[1] == pytest.approx(scale * tpots[0], rel=0.01)


def test_requests_of_a_rate_are_played_as_they_came(tmp_path: Path) -> None:
    details = {
        "request_rate": 4.0,
        "max_concurrency": None,
        "input_lens": [1000] * 96,
        "output_lens": [200] * 96,
        "ttfts": [0.05] * 96,
        "itls": [[0.009] * 199] * 96,
        "start_times": [index / 4 for index in range(96)],
    }
    found = _plan(measured=_saved(tmp_path, **details))
    assert 1.05 < found["performance"]["scaled_by"]["kernels"] < 1.5


@pytest.mark.parametrize(
    ("more", "asked", "sentence"),
    [
        ({"model_id": "Qwen/Qwen3-8B"}, {}, "is of Qwen/Qwen3-8B, not of meta-llama/Llama-3.1-8B"),
        ({"gpu": "a100-80gb-sxm"}, {}, "is of a100-80gb-sxm, not of h100-sxm"),
        ({"tp": 4}, {"tensor_parallel_size": [1, 2]}, "is of tensor_parallel_size=4, not of tensor_parallel_size=1, 2"),
        ({}, {"gpu": ["h100-sxm", "h200"]}, "does not say which GPU it was measured on"),
        ({}, {"tensor_parallel_size": [1, 2]}, "does not say its tensor parallel size"),
        ({"backend": "sglang"}, {}, "is of sglang"),
        ({"failed": 3}, {}, "some requests failed"),
    ],
)
def test_what_is_of_another_server_is_refused_in_a_sentence(
    tmp_path: Path, more: dict[str, Any], asked: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(KvplanError, match=sentence) as refused:
        kvplan.plan("llama-3.1-8b", **({"users": 8, "gpu": "h100-sxm"} | asked), measured=_saved(tmp_path, **more))
    assert refused.value.hint


def test_kvplans_own_engine_learns_from_its_own_sweeps(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="measured takes results of vLLM"):
        kvplan.estimate("gpt2", engine="kvplan", gpu="l4", measured=_saved(tmp_path))
