"""vLLM refuses more sequences than blocks where a model has states and whole decode steps are captured.

"max_num_seqs (1024) exceeds available Mamba cache blocks (856)": vllm-project/recipes, pull request 551, Qwen3.5-27B on
an H100 with the settings below. Before 0.20 it captures fewer sizes instead.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.estimate.weights import named_format
from kvplan.planner.question.request import PlanRequest
from kvplan.planner.search.plan import make_plan
from kvplan.settings import ServingSettings

REFUSED = (
    "estimate qwen3.5-27b --gpu h100-sxm --quantization fp8-block --engine vllm@0.23 --gpu-memory-utilization 0.95 "
    "--ctx 262144"
)
SETTINGS = ServingSettings(gpu_memory_utilization=0.95, max_model_len=32768)


def predicted(
    model: str = "qwen3.5-27b", gpu: str = "h100-sxm", version: str = "0.23", **changes: object
) -> VllmPrediction:
    spec = resolve_model(model)
    if spec.quantization is None:
        spec = replace(spec, quantization=named_format("fp8-block"))
    return predict_vllm(spec, find_gpu(gpu), replace(SETTINGS, **changes), version)  # type: ignore[arg-type]


def test_the_published_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"{REFUSED} --json")) == 1
    printed = capsys.readouterr()
    found = json.loads(printed.out)["deployments"][0]
    assert not found["fits"]
    assert (found["max_num_seqs"], found["most_num_seqs"]) == (1024, found["num_blocks"])
    low, high = found["most_num_seqs_low"], found["most_num_seqs_high"]
    assert low <= 856 <= high
    assert found["limit"] == f"max_num_seqs 1,024 exceeds {found['num_blocks']} state blocks (--max-num-seqs {low})"
    assert f"hint: use --max-num-seqs {low}, or" in printed.err


def test_what_is_hinted_at_starts_and_is_sure(capsys: pytest.CaptureFixture[str]) -> None:
    main(shlex.split(f"{REFUSED} --json"))
    low = json.loads(capsys.readouterr().out)["deployments"][0]["most_num_seqs_low"]
    assert main(shlex.split(f"{REFUSED} --max-num-seqs {low} --no-calibration")) == 0
    assert "refused" not in capsys.readouterr().out


def test_within_the_interval_it_may_be_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"{REFUSED} --max-num-seqs 866 --no-calibration")) == 0
    assert "may be refused: max_num_seqs 866, " in capsys.readouterr().out


@pytest.mark.parametrize(("version", "outcome"), [("0.19.1", "ok"), ("0.20.0", "rejected_seqs"), ("0.33", "ok")])
def test_releases(version: str, outcome: str) -> None:
    """0.19.1 captures fewer sizes; with 450 sequences 0.33, whose pool is the same, has blocks enough."""
    seqs = 450 if version == "0.33" else 1024
    assert predicted(version=version, max_num_seqs=seqs).outcome == outcome


def test_the_number_of_blocks_is_the_bound() -> None:
    most = predicted(max_num_seqs=866).most_num_seqs
    assert most is not None
    assert predicted(max_num_seqs=866).num_blocks == most
    assert predicted(max_num_seqs=most + 8).outcome == "rejected_seqs"


@pytest.mark.parametrize(
    ("model", "gpu", "version", "changes", "is_bound"),
    [
        ("qwen3.5-27b", "h100-sxm", "0.23", {}, True),
        ("qwen3.5-27b", "h100-sxm", "0.23", {"enforce_eager": True}, False),
        ("qwen3.5-27b", "h100-sxm", "0.23", {"num_speculative_tokens": 1}, True),
        ("qwen3.5-27b", "l40s", "0.23", {"num_speculative_tokens": 1, "kv_cache_dtype": "fp8"}, False),
        ("qwen3.5-27b", "l40s", "0.33", {"num_speculative_tokens": 1, "kv_cache_dtype": "fp8"}, True),
        ("qwen3.5-27b", "cpu", "0.33", {"device_memory_bytes": 200 << 30}, False),
        ("falcon-mamba-7b", "h100-sxm", "0.23", {}, True),
        ("qwen3-32b", "h100-sxm", "0.23", {}, False),
        ("gemma-3-27b", "h100-sxm", "0.23", {}, False),
    ],
)
def test_only_states_in_captured_steps_are_bound(
    model: str, gpu: str, version: str, changes: dict[str, object], is_bound: bool
) -> None:
    """Eager steps, CPUs, and drafts that FlashInfer's kernels do not take in whole captured steps are not."""
    assert (predicted(model, gpu, version, **changes).most_num_seqs is not None) == is_bound


@pytest.mark.parametrize(("users", "rate"), [(40, None), (None, 20.0)])
def test_a_plan_chooses_what_starts(users: int | None, rate: float | None) -> None:
    """Under a rate the search begins with 1,024 sequences, which a pool of this size has no blocks for."""
    request = PlanRequest(
        gpus=(find_gpu("h100-sxm"),),
        num_users=users,
        requests_per_second=rate,
        input_tokens=2000,
        output_tokens=200,
        max_gpus=4,
        engine=EngineChoice("vllm", "0.23"),
        quantizations=("fp8-block",),
    )
    found = make_plan(resolve_model("qwen3.5-27b"), request)
    assert found.deployments
    for each in found.deployments:
        most = each.prediction.most_num_seqs
        assert most is not None
        assert each.prediction.fits
        assert each.prediction.settings.serving.max_num_seqs <= most
