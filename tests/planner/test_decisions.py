"""What is called best: by the played load, over all that decides, and no better answer is hidden."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data_rows import data_rows

import check_plans
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.estimate.speed.latency import Range
from kvplan.planner.choices.basis import PlanBasis
from kvplan.planner.choices.candidate import Candidate
from kvplan.planner.choices.deployment import DeploymentChoice
from kvplan.planner.choices.sizing import candidate, least_replicas
from kvplan.planner.choices.verdict import Figure, share_at_most
from kvplan.planner.question.asking import plan_request
from kvplan.planner.question.request import ParallelSizes, PlanRequest, complete
from kvplan.planner.question.slo import parse_slo
from kvplan.planner.search.frontier import Frontier
from kvplan.planner.search.plan import PlanAnswer, formats_asked, make_plan
from kvplan.settings import ServingSettings

MEASURED = load_measured()


def request(*gpus: str, slo: str = "", **changes: object) -> PlanRequest:
    asked = PlanRequest(gpus=tuple(map(find_gpu, gpus)), slo=parse_slo(slo.split()))
    return replace(asked, **changes)  # type: ignore[arg-type]


def planned(model: str, *gpus: str, slo: str = "", **changes: object) -> PlanAnswer:
    return make_plan(resolve_model(model), request(*gpus, slo=slo, **changes), MEASURED)


# Two replicas of equal price against one that is divided


@pytest.mark.parametrize(
    ("model", "gpu", "users", "most"),
    [("llama-3.1-8b", "a100-80gb-sxm", 200, 2), ("qwen3-32b", "h100-sxm", 100, 4), ("llama-3.1-8b", "h200", 300, 2)],
)
def test_of_equal_prices_what_all_replicas_answer_decides(model: str, gpu: str, users: int, most: int) -> None:
    found = planned(model, gpu, num_users=users, average_context=4096, max_gpus=most)
    best = found.deployments[0]
    beside = [each for each in found.deployments if each.num_gpus == best.num_gpus]
    assert best.output_tokens_per_second.middle == max(each.output_tokens_per_second.middle for each in beside)


def test_the_budget_of_a_step_is_searched() -> None:
    """With vLLM's default of 2,048 tokens 200 users of two A100 wait 20 s, with 8,192 one."""
    asked = {"num_users": 200, "average_context": 4096, "max_gpus": 2, "sizes": ParallelSizes(tensor=(2,))}
    best = planned("llama-3.1-8b", "a100-80gb-sxm", **asked).deployments[0]
    assert best.prediction.settings.serving.max_num_batched_tokens > 2048
    assert best.expected.time("ttft", "p50").middle < 2  # type: ignore[union-attr]
    kept = planned("llama-3.1-8b", "a100-80gb-sxm", slo="ttft:2000", **asked)
    assert kept.deployments[0].verdict.meets, "which with the default nothing keeps"


def test_what_nobody_would_read_is_not_the_answer(printed_by: Callable[..., str]) -> None:
    """Eight RTX 3090 hold the cache of 50 users for two cents less than what is twice as fast."""
    found = planned("qwen3-32b", "rtx-3090", "rtx-pro-6000", num_users=50, average_context=8192, longest_context=32768)
    best = found.deployments[0]
    assert best.choice.gpu.id == "rtx-pro-6000"
    assert best.verdict.meets and best.expected.time("tpot", "p50").middle <= 0.1  # type: ignore[union-attr]
    printed = printed_by("plan llama-3.3-70b --users 8 --ctx-avg 4k --gpu a6000 --max-gpus 4")
    assert "Slower than people read" in printed
    others = planned("llama-3.3-70b", "a6000", num_users=8, average_context=4096, max_gpus=4).alternatives
    is_one_faster = any(each.deployment.verdict.meets for each in others)
    assert is_one_faster and "in this format nothing within the limits is fast enough" in printed


# A verdict is a confidence


@pytest.mark.parametrize(
    ("bound", "share"), [(2.0, 0.95), (1.0, 0.5), (0.5, 0.05), (0.4, 0.0), (math.sqrt(2.0), 0.795), (1e9, 1.0)]
)
def test_the_share_of_measurements_within_a_bound(bound: float, share: float) -> None:
    """One in twenty lies beyond each end of what holds nine in ten; below the data sheet's bound there is none."""
    figure = Figure(1.0, Range(0.5, 2.0, least=0.45))
    assert share_at_most(figure, bound) == pytest.approx(share, abs=0.001)


def test_no_bound_is_kept_without_an_end() -> None:
    assert share_at_most(Figure(math.inf, Range(math.inf, math.inf)), 5.0) == 0.0
    assert share_at_most(Figure(1.0, Range(0.5, math.inf)), 5.0) == 0.5
    assert share_at_most(Figure(1.0, Range(1.0, 1.0)), 1.0) == 1.0


def test_meets_is_as_sure_as_was_asked_for(printed_by: Callable[..., str]) -> None:
    asked = {"num_users": 300, "average_context": 4096, "max_gpus": 32}
    usual, surer = (
        planned("llama-3.3-70b", "h100-sxm", slo="ttft:1000", confidence=share, **asked).deployments[0]
        for share in (0.75, 0.9)
    )
    assert usual.verdict.meets and 0.75 <= usual.verdict.confidence < 0.9
    assert surer.verdict.confidence >= 0.9 and (surer.usd_per_hour or 0) > (usual.usd_per_hour or 0)
    assert usual.expected.time("ttft", "mean").middle < 1.0  # type: ignore[union-attr]
    words = "plan llama-3.3-70b --users 300 --ctx-avg 4k --slo ttft:1000 --gpu h100 --max-gpus 32"
    assert "% sure (75 % asked for)" in printed_by(words)
    assert main([*words.split(), "--confidence", "2"]) == 2


def test_a_surer_answer_in_another_format_is_not_hidden() -> None:
    """Eight H100 keep a second with 8-bit weights where they do not as published."""
    asked = {"num_users": 300, "input_tokens": 3840, "output_tokens": 256, "max_gpus": 8}
    found = planned("llama-3.3-70b", "h100-sxm", slo="ttft:1000", **asked)
    assert not any(each.verdict.meets for each in found.deployments)
    surest = max((each.deployment for each in found.alternatives), key=lambda each: each.verdict.confidence)
    assert surest.verdict.confidence > 0.6 and surest.num_gpus <= 8 and surest.choice.weights.name in ("fp8", "awq")


# Limits


def test_a_budget_says_how_many_gpus_are_tried() -> None:
    asked = request("h100-sxm", num_users=8, usd_per_hour=60.0)
    assert asked.most_gpus(asked.gpus[0]) == 22  # at $2.69
    assert replace(asked, usd_per_hour=None).most_gpus(asked.gpus[0]) == 8
    assert replace(asked, usd_per_hour=1.0).most_gpus(asked.gpus[0]) == 8, "what is too dear is found, and said"
    assert replace(asked, max_gpus=4).most_gpus(asked.gpus[0]) == 4
    nodes = replace(asked, usd_per_hour=None, sizes=ParallelSizes(num_nodes=2))
    assert nodes.most_gpus(nodes.gpus[0]) == 16


def test_a_limit_that_nobody_gave_is_said(printed_by: Callable[..., str]) -> None:
    assert "At most 8 GPUs in all (--max-gpus)." in printed_by("plan llama-3.1-8b --users 4 --ctx-avg 4k --gpu h100")
    assert "--max-gpus" not in printed_by("plan llama-3.1-8b --users 4 --ctx-avg 4k --gpu h100 --max-gpus 3")


def test_a_hint_recommends_nothing_that_is_unlikely(said_by: Callable[..., str]) -> None:
    words = "plan llama-3.3-70b --users 300 --ctx-avg 4k --slo p99_ttft:500 --gpu h100 --max-gpus 8"
    assert "likely" not in said_by(words, code=1)


# The whole grid


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama-3.1-8b", {"users": 60, "ctx_avg": "4k", "gpu": ["l40s", "a100-80gb-sxm"], "max_gpus": 2}),
        pytest.param(
            "llama-3.1-8b",
            {"request_rate": 4.0, "gpu": ["l40s", "h100"], "max_gpus": 2, "slo": ["p99_ttft:1500"]},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "qwen3-30b-a3b",
            {"users": 40, "gpu": ["h100"], "max_gpus": 4, "slo": ["ttft:500 tpot:30"]},
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_nothing_of_the_whole_grid_dominates_the_answer(model: str, options: dict[str, Any]) -> None:
    """``tools/check_plans.py`` asks thirty questions; its figures are in docs/plan.md."""
    lengths = {} if "ctx_avg" in options else {"input_len": "2000", "output_len": "200"}
    found = check_plans.ask(model, {**options, **lengths}, MEASURED)
    assert found.best is not None and found.num_in_grid > 1
    assert not found.better
    assert found.kept in (None, 20)


def test_what_one_request_alone_rules_out_is_tried_with_one_budget() -> None:
    """Time per token of a lone request is the same with each budget; a plan without an answer tries hundreds of
    choices."""
    spec, measured = resolve_model("llama-3.1-8b"), load_measured(None)
    request = plan_request(
        EngineChoice("vllm"), ServingSettings(), users=40, ctx_avg="4k", gpu=["h100-sxm"], slo=["tpot:1"]
    )
    basis = PlanBasis(request, complete(request, spec), measured)
    found = Frontier(basis, formats_asked(spec, request)[0], None).run()
    assert found.misses
    assert all(each.is_final and each.reason == "tpot" for each in found.misses)
    settings = {key[0][-2:] for key in basis.models}  # type: ignore[index]
    assert settings == {(None, False)}  # token budget, eager
    hopeless = candidate(basis, found.misses[0].choice, 1)
    assert isinstance(hopeless, Candidate)
    assert hopeless.is_hopeless(request.goal)
    assert not hopeless.is_hopeless(replace(request, slo=parse_slo(["tpot:50"])).goal)


# What is computed for choices that are not played


@pytest.mark.parametrize(
    "load", [{"users": 300, "ctx_avg": "4k"}, {"request_rate": 12.0, "input_len": "2000", "output_len": "200"}]
)
def test_a_load_takes_no_fewer_replicas_than_the_least(load: dict[str, Any]) -> None:
    """The search looks from there on: by the pool of one with the fewest seats, or by what one with all can answer."""
    spec = resolve_model("llama-3.1-8b")
    asked = plan_request(EngineChoice("vllm"), ServingSettings(), gpu=["l40s"], max_gpus=12, **load)
    basis = PlanBasis(asked, complete(asked, spec), MEASURED)
    pair, gpu = formats_asked(spec, asked)[0][0], basis.gpus[0]
    for layout in basis.layouts(pair.weights, gpu, across_nodes=False):
        choice = DeploymentChoice(gpu, layout, pair.weights, pair.kv_cache_dtype)
        held = [isinstance(candidate(basis, choice, count), Candidate) for count in range(1, 1 + 12 // layout.num_gpus)]
        fewest = 1 + held.index(True) if any(held) else math.inf
        least = least_replicas(basis, choice)
        assert least <= fewest
        assert least > 0.4 * fewest or fewest in (1, math.inf)


def test_start_ups_are_predicted_for_few_numbers_of_replicas() -> None:
    """Nine layouts with five token budgets each, of up to 64 GPUs: 91 where each number that averages rule out had its
    start-up predicted, and the search for the fewest replicas began at one; a few are without graphs."""
    spec = resolve_model("llama-3.1-70b")
    asked = plan_request(EngineChoice("vllm"), ServingSettings(), users=64, ctx_avg="4k", gpu=["l40s"], max_gpus=64)
    basis = PlanBasis(asked, complete(asked, spec), MEASURED)
    found = Frontier(basis, formats_asked(spec, asked)[0], None).run()
    assert found.num_tried == 9 and found.num_played > 0
    assert len(basis.predictions) < 80


ROWS = data_rows("first_commands")


@pytest.mark.parametrize(("words", "code", "said"), [(row["command"], row["code"], row["says"]) for row in ROWS])
def test_the_first_command_answers(words: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(words)) == code
    printed = capsys.readouterr()
    assert re.search(said, printed.out + printed.err), printed.out[:600] + printed.err[:600]


def test_a_trace_is_a_load(tmp_path: Path, printed_by: Callable[..., str]) -> None:
    """Azure's columns; 40 requests in 10 s, each of 1,000 and 100 tokens."""
    lines = [f"2024-05-10 00:00:{index / 4:09.6f},1000,100" for index in range(40)]
    path = tmp_path / "azure.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    assert "Rent 1 x h100-sxm" in printed_by("plan", "llama-3.1-8b", "--workload", str(path), "--gpu", "h100")


def test_a_directory_is_served_where_it_lies(tmp_path: Path, printed_by: Callable[..., str]) -> None:
    """A fine-tune that somebody has."""
    folder = tmp_path / "ft"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(resolve_model("llama-3.1-8b").raw_config))
    assert f"vllm serve {folder} " in printed_by(
        "plan", str(folder), "--users", "4", "--ctx-avg", "4k", "--gpu", "h100"
    )
