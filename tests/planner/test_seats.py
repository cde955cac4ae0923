"""Seats for fewer requests than come at once, and steps without graphs: where they serve a load, and what is said."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.planner.choices.load import serve_users
from kvplan.planner.launch.engines import launch_commands
from kvplan.planner.question.asking import plan_request
from kvplan.planner.search.plan import PlanAnswer, make_plan
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
