"""Seats for fewer requests than come at once, and steps without graphs: where they serve a load, and what is said."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.estimate.parallel import ParallelLayout
from kvplan.planner.choices.basis import PlanBasis
from kvplan.planner.choices.candidate import Candidate
from kvplan.planner.choices.deployment import DeploymentChoice
from kvplan.planner.choices.load import serve_users
from kvplan.planner.choices.sizing import candidate, least_that_answer
from kvplan.planner.launch.engines import launch_commands
from kvplan.planner.likeness import AskedPlan, likened
from kvplan.planner.question.asking import plan_request
from kvplan.planner.question.request import complete
from kvplan.planner.search.plan import PlanAnswer, formats_asked, make_plan
from kvplan.planner.search.ranking import fewest
from kvplan.settings import ServingSettings

MEASURED = load_measured()


def plan(settings: ServingSettings = ServingSettings(), **options: Any) -> PlanAnswer:
    asked = plan_request(EngineChoice("vllm"), settings, **{"gpu": ["rtx-4090"], **options})
    return make_plan(resolve_model("llama-3.1-8b"), asked, MEASURED)


def test_fewer_seats_keep_a_bound_that_a_seat_for_each_breaks() -> None:
    """Two cards write fast enough to eight of ten, and the others wait; three cards to all of them."""
    found = plan(users=10, slo=["tpot:40"])
    best = found.deployments[0]
    assert best.verdict.meets and best.waits and best.num_gpus == 2
    seats, middle = best.choice.max_num_seqs, best.served.middle
    assert seats is not None and middle is not None and best.served.num_running == seats < 10
    assert f"--max-num-seqs {seats} " in launch_commands(best, "m")["vllm"]
    assert best.queues is not None and best.queues.figures.max_running == seats
    assert best.queues.figures.ttft.mean > 3 * best.speed_model.steady(seats, "middle").ttft_seconds
    # of the same cards, more seats break it
    assert not any(each.verdict.meets and not each.waits and each.num_gpus == 2 for each in found.deployments)


def test_without_a_service_level_nobody_waits() -> None:
    for users in (10, 60):
        assert not any(each.waits for each in plan(users=users, ctx_avg="4k").deployments)


def test_a_bound_on_tpot_alone_makes_nobody_wait_for_long() -> None:
    """A few seats write fast however many wait: what is readable begins within ten seconds."""
    assert not plan(users=200, slo=["tpot:40"], max_gpus=2).deployments
    bounded = plan(users=10, slo=["tpot:40", "ttft:1000"])
    assert not bounded.deployments[0].waits and bounded.deployments[0].num_gpus > 2


def test_seats_that_somebody_asks_for_make_the_others_wait() -> None:
    found = plan(ServingSettings(max_num_seqs=4), users=6, ctx_avg="4k")
    best = found.deployments[0]
    assert best.waits and best.served.num_running == 4
    assert best.prediction.settings.serving.max_num_seqs == 4


def test_who_waits_waits_for_the_answers_of_those_before() -> None:
    """Little's law: all of them in the time that they take, at the rate of those who run."""
    model = plan(users=8, ctx_avg="4k").deployments[0].speed_model
    alone, waiting = serve_users(model, 4).middle, serve_users(model, 10, 4).middle
    assert alone is not None and waiting is not None
    assert waiting.requests_per_second == pytest.approx(alone.requests_per_second)
    assert waiting.tpot_seconds == alone.tpot_seconds
    assert waiting.e2el_seconds == pytest.approx(10 / alone.requests_per_second)
    speed = serve_users(model, 10, 4).speed
    assert speed.ttft_seconds.low < waiting.ttft_seconds < speed.ttft_seconds.high


def test_closed_form_of_waiting_agrees_with_its_play() -> None:
    best = plan(users=10, slo=["tpot:40"]).deployments[0]
    assert best.queues is not None and best.served.middle is not None
    assert best.queues.figures.ttft.mean == pytest.approx(best.served.middle.ttft_seconds, rel=0.25)
    assert best.queues.figures.e2el.mean == pytest.approx(best.served.middle.e2el_seconds, rel=0.1)


def test_graphs_are_left_out_where_only_their_memory_holds_the_load(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama-3.1-8B in bfloat16 on 24 GB: 8 users of 4,096 tokens with graphs, and 10 without."""
    counts: dict[str, Any] = {"gpu": ["rtx-4090"], "max_gpus": 1, "ctx_avg": "4k"}
    with_graphs, without = (plan(users=users, **counts).deployments[0] for users in (8, 10))
    assert not with_graphs.choice.enforce_eager and without.choice.enforce_eager and without.verdict.meets
    assert without.capacity.average_sequences >= 10
    assert (
        main(["plan", "llama-3.1-8b", "--users", "10", "--ctx-avg", "4k", "--gpu", "rtx-4090", "--max-gpus", "1"]) == 0
    )
    printed = capsys.readouterr().out
    assert " --enforce-eager" in printed and "Graphs: left out (--enforce-eager)" in printed
    assert not plan(users=12, **counts).deployments


def test_users_who_think_wait_for_seats_too() -> None:
    """Of 30 users who read for five seconds ten or so have a request on each of two pairs of cards: too many."""
    best = plan(users=30, think_time="5s", slo=["tpot:40"]).deployments[0]
    assert best.verdict.meets and best.waits and best.num_gpus == 4
    seats, middle = best.choice.max_num_seqs, best.served.middle
    assert seats is not None and middle is not None and best.queues is not None
    assert best.queues.figures.max_running == seats == best.served.num_running < best.served.num_users
    assert best.queues.figures.ttft.mean == pytest.approx(middle.ttft_seconds, rel=0.25)
    assert best.queues.figures.e2el.mean == pytest.approx(middle.e2el_seconds, rel=0.1)
    # by the interactive response time law
    assert best.served.num_users == pytest.approx(15 * middle.e2el_seconds / (middle.e2el_seconds + 5), rel=0.05)


def test_seats_of_a_running_deployment_make_the_others_wait() -> None:
    command = "vllm serve llama-3.1-8b --max-num-seqs 32 --max-model-len 4096"
    options = {"users": 48, "gpu": ["h100"]}
    kept, _ = likened(AskedPlan("llama-3.1-8b", ServingSettings(), options), command)
    best = make_plan(resolve_model("llama-3.1-8b"), kept.request(), MEASURED).deployments[0]
    assert best.waits and best.num_gpus == 1 and best.served.num_running == 32


def _may_keep(basis: PlanBasis, choice: DeploymentChoice, replicas: int) -> bool:
    budgets = (choice.for_all(tokens) for tokens in (None, *basis.other_step_tokens(choice.gpu)))
    found = (candidate(basis, each, replicas) for each in budgets)
    return any(isinstance(each, Candidate) and each.may_keep(basis.request.goal) for each in found)


def test_what_is_too_few_replicas_by_throughput_keeps_no_goal() -> None:
    """A bound from below, which says something where reading prompts takes most of the time."""
    spec = resolve_model("llama-3.1-8b")
    options: dict[str, Any] = {"ctx_avg": "4k", "slo": ["ttft:2000 tpot:50"], "gpu": ["h100", "l40s", "mi300x"]}
    for more in ({"users": 200}, {"users": 300, "think_time": "10s"}):
        request = plan_request(EngineChoice("vllm"), ServingSettings(), max_gpus=64, **options, **more)
        basis = PlanBasis(request, complete(request, spec), MEASURED)
        pair = formats_asked(spec, request)[0][0]
        for gpu in basis.gpus:
            choice = DeploymentChoice(gpu, ParallelLayout(), pair.weights, pair.kv_cache_dtype)
            least = least_that_answer(basis, choice)
            needed = fewest(64, partial(_may_keep, basis, choice))
            assert needed is not None and needed / 4 < least <= needed, (gpu.id, least, needed)
