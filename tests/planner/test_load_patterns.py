"""Loads as people have them: users who think, and how lengths spread."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.models import resolve_model
from kvplan.errors import UsageError
from kvplan.estimate.speed.queues import Queues
from kvplan.planner.choices.deployment import Deployment
from kvplan.planner.choices.played import Replica
from kvplan.planner.question.pattern import LoadPattern, load_pattern
from kvplan.planner.question.request import ParallelSizes, PlanRequest, complete
from kvplan.planner.search.plan import Plan, make_plan

SPEC = resolve_model("llama-3.1-8b")
REQUEST = PlanRequest(
    num_users=300,
    input_tokens=1000,
    output_tokens=200,
    gpus=(find_gpu("h100-sxm"),),
    sizes=ParallelSizes(tensor=(1,), pipeline=(1,), data=(1,)),
    max_gpus=1,
    quantizations=("published",),
    kv_cache_dtypes=("auto",),
)


def planned(pattern: LoadPattern = LoadPattern(), **changes: object) -> Plan:
    return make_plan(SPEC, replace(REQUEST, pattern=pattern, **changes), load_measured())  # type: ignore[arg-type]


def played(plan: Plan) -> tuple[Deployment, Queues]:
    best = plan.deployments[0]
    parts = (best.choice, best.replicas, best.prediction, best.capacity, best.speed_model)
    found = Replica(plan.workload, *parts).play(best.served)
    assert found is not None
    return best, found


def test_users_who_think_need_fewer_gpus_than_as_many_requests_in_progress() -> None:
    """600 people who read for 20 s, of whom some 100 wait at a time: one GPU holds what all of them would not fit."""
    assert not planned(num_users=600).deployments
    best, found = played(planned(LoadPattern(think_seconds=20.0), num_users=600))
    assert best.served.middle is not None
    assert best.served.num_users == pytest.approx(600 * found.figures.e2el.mean / (found.figures.e2el.mean + 20), 0.1)
    assert best.served.middle.e2el_seconds == pytest.approx(found.figures.e2el.mean, rel=0.1)
    assert best.served.middle.tpot_seconds == pytest.approx(found.figures.tpot.mean, rel=0.1)  # type: ignore[union-attr]
    assert found.output_throughput == pytest.approx(600 * 200 / (found.figures.e2el.mean + 20))


def test_pauses_bound_the_throughput_whatever_the_engine_does() -> None:
    """Users who think for 20 s send no more than one request in so much time: 200 tokens of it are 3,000 a second."""
    _, found = played(planned(LoadPattern(think_seconds=20.0)))
    between = found.between("throughput", found.output_throughput)
    assert between is not None
    assert between.low < found.output_throughput < between.high < 300 / 20 * 200


def test_pauses_need_users() -> None:
    with pytest.raises(UsageError, match="--think-time needs --users"):
        complete(replace(REQUEST, num_users=None, requests_per_second=2.0, pattern=LoadPattern(5.0)), SPEC)


@pytest.mark.parametrize(("text", "seconds"), [("20", 20.0), ("20s", 20.0), ("500 ms", 0.5), ("1.5m", 90.0)])
def test_a_pause_as_people_write_it(text: str, seconds: float) -> None:
    assert load_pattern(think_time=text).think_seconds == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "-1", "soon", "20h", "1e3", "nan"])
def test_what_is_no_pause_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--think-time"):
        load_pattern(think_time=text)


def test_the_wider_lengths_spread_the_longer_is_the_tail() -> None:
    spreads = [LoadPattern(length_spread=each) for each in ("fixed", "uniform", "exponential")]
    figures = [played(planned(each, longest_context=4096, num_users=64))[1].figures for each in spreads]
    fixed, uniform, exponential = (each.e2el.p99 / each.e2el.median for each in figures)
    assert fixed < uniform < exponential
    with pytest.raises(UsageError, match="length-spread"):
        load_pattern(length_spread="zipf")
