"""``kvplan plan --workload TRACE`` with ``--disaggregate`` and ``--autoscale``: sentences, tables, JSON, mistakes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.commands.printing.fleets import print_fleet
from kvplan.planner.answer.fleet_document import fleet_document
from kvplan.planner.fleets.answering import FleetAnswer, plan_fleet
from kvplan.planner.question.asking import plan_request
from kvplan.settings import ServingSettings


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A busy moment in twenty quiet minutes: prompts of 6,000 tokens, answers of 40."""
    path, rng = tmp_path_factory.mktemp("trace") / "rush.csv", random.Random(3)
    moments = [20.0 * count for count in range(60)] + [300 + 0.03 * count for count in range(100)]
    lines = ["input_len,output_len,arrival_s"]
    lines += [f"{rng.randrange(4000, 8000)},{rng.randrange(20, 60)},{at:.3f}" for at in sorted(moments)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def answer(trace: Path) -> FleetAnswer:
    """Both wishes at once; a start takes no time, so that replicas may come for the moment when they are needed."""
    request = plan_request(
        EngineChoice("vllm"),
        ServingSettings(max_num_batched_tokens=8192),
        workload=trace,
        gpu=["h100-sxm"],
        max_gpus=6,
        tensor_parallel_size=["1"],
        quantization=["published"],
        kv_cache_dtype=["auto"],
        slo=["p95_ttft:2000 p95_tpot:100"],
        confidence="0.5",
        router="least-loaded",
        window="20m",
        plays_trace=True,
        disaggregate=True,
        autoscale=True,
        max_replicas=6,
        cold_start="0s",
    )
    return plan_fleet(resolve_model("llama-3.1-8b"), request, load_measured(None))


def _fleet(answer: FleetAnswer) -> dict[str, Any]:
    found: dict[str, Any] = fleet_document(answer)["fleet"]
    return found


def test_pools_stand_beside_the_fleet(answer: FleetAnswer) -> None:
    found = _fleet(answer)
    pools, replicas = found["pools"], found["best"]["replicas"]
    assert replicas > 1
    assert pools["together"]["num_decode_replicas"] == replicas
    assert pools["num_ratios"] == replicas - 1
    assert all(each["num_gpus"] <= replicas for each in pools["apart"])
    assert all(each["transfer_p99_ms"] > 0 and each["kv_bytes_moved"] > 0 for each in pools["apart"])
    assert pools["link"] == "NVLink"
    assert pools["disaggregate"] == (pools["gain"] > pools["error_factor"])
    assert pools["verdict"].startswith("Disaggregate" if pools["disaggregate"] else "Do not disaggregate")


def test_a_policy_stands_beside_the_fleet(answer: FleetAnswer) -> None:
    found = _fleet(answer)
    policy, replicas = found["policy"], found["best"]["replicas"]
    assert policy["fixed"]["num_replicas"] == replicas
    assert policy["fixed"]["replica_hours"] == pytest.approx(replicas * 1200 / 3600, rel=0.03)
    assert policy["fixed"]["usd"] == pytest.approx(2.69 * policy["fixed"]["replica_hours"], abs=0.01)
    assert (policy["cold_start_seconds"], policy["cold_start_is_stated"]) == (0, True)
    assert all(each["max_replicas"] == 6 for each in policy["policies"])
    kept = [each["replica_hours"] for each in policy["policies"] if each["keeps_slo"]]
    assert kept == sorted(kept)
    saved = max(1 - kept[0] / policy["fixed"]["replica_hours"], 0) if kept else 0
    assert policy["saved_share"] == pytest.approx(saved, abs=0.01)


def test_the_answer_comes_first_and_the_lines_to_paste_last(
    answer: FleetAnswer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer.pools is not None
    assert answer.policy is not None
    print_fleet(answer, "table")
    text = capsys.readouterr().out
    assert text.index(answer.pools.verdict[:30]) < text.index("  vllm:")
    assert text.index(answer.policy.verdict[:20]) < text.index("kept by")
    assert "Prefill and decode apart in the busiest window (vllm's hand-over" in text
    assert ("kind: ScaledObject" in text) == (answer.policy.found.saved_share > 0)


def test_what_scales_is_applied_beside_the_deployment(answer: FleetAnswer, capsys: pytest.CaptureFixture[str]) -> None:
    print_fleet(answer, "kubernetes")
    kinds = [each.get("kind") for each in yaml.safe_load_all(capsys.readouterr().out) if each]
    assert kinds[:2] == ["Deployment", "Service"]
    assert answer.policy is not None
    assert ("ScaledObject" in kinds) == (answer.policy.found.saved_share > 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hand-over", "sglang"], "--hand-over needs --disaggregate"),
        (["--disaggregate", "--hand-over", "triton"], "Unknown --hand-over 'triton'"),
        (["--cold-start", "4m"], "--cold-start needs --autoscale"),
        (["--autoscale", "--min-replicas", "0"], "--min-replicas must be at least 1"),
        (["--autoscale", "--min-replicas", "4", "--max-replicas", "2"], "--max-replicas 2 is below --min-replicas 4"),
    ],
)
def test_mistakes_are_told(trace: Path, said_by: Callable[..., str], options: list[str], message: str) -> None:
    error = said_by("plan", "llama-3.1-8b", "--workload", str(trace), "--gpu", "h100-sxm", *options)
    assert message in error
    assert "hint: " in error
