"""The queues of a plan's deployments, and what their steps consist of."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Literal

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.models import resolve_model
from kvplan.commands.printing.queues import server_text
from kvplan.estimate.speed.queueing.front_end import VLLM_FRONT_END
from kvplan.estimate.speed.queues import queues_document
from kvplan.planner.answer.notes import explained_steps
from kvplan.planner.question.request import ParallelSizes, PlanRequest
from kvplan.planner.question.slo import Slo
from kvplan.planner.search.fixes import cheapest_fix
from kvplan.planner.search.plan import PlanAnswer, make_plan
from kvplan.settings import ServingSettings

SPEC = resolve_model("llama-3.1-8b")
REQUEST = PlanRequest(
    num_users=24,
    input_tokens=1000,
    output_tokens=200,
    gpus=(find_gpu("h100-sxm"),),
    sizes=ParallelSizes(tensor=(1,), pipeline=(1,), data=(1,)),
    max_gpus=1,
    settings=ServingSettings(max_num_batched_tokens=8192),
)


def planned(**changes: object) -> PlanAnswer:
    return make_plan(SPEC, replace(REQUEST, **changes), load_measured())  # type: ignore[arg-type]


def test_users_wait_for_each_other() -> None:
    plan = planned()
    best = plan.deployments[0]
    found = best.queues
    assert found is not None
    assert best.served.middle is not None
    assert found.figures.tpot is not None
    assert found.figures.ttft.median < found.figures.ttft.p99
    # the closed form of the table and the play are of one mind about the pace
    assert found.figures.tpot.mean == pytest.approx(best.served.middle.tpot_seconds, rel=0.25)
    # and throughput is what the play's own latencies leave to 24 users
    assert found.output_throughput < 24 / found.figures.tpot.mean
    assert found.output_throughput == pytest.approx(24 * 200 / found.figures.e2el.mean)
    alone = planned(num_users=1).deployments[0].queues
    assert alone is not None
    assert alone.figures.ttft.p99 < found.figures.ttft.p99


def test_a_rate_has_seats_for_bunched_arrivals() -> None:
    plan = planned(num_users=None, requests_per_second=4.0)
    best = plan.deployments[0]
    seats = best.prediction.settings.serving.max_num_seqs
    assert seats >= best.served.num_users + 3 * best.served.num_users**0.5
    found = best.queues
    assert found is not None
    assert found.output_throughput == 4 * 200


def test_seats_suffice_where_steps_with_prompts_are_slower_than_on_average() -> None:
    """At 14 requests/s twice as many as on average run at times: with seats for 48, 1 in 2 waited for one."""
    plan = planned(num_users=None, requests_per_second=14.0)
    best = plan.deployments[0]
    found = best.queues
    assert found is not None
    assert best.served.num_users < found.figures.max_running < best.prediction.settings.serving.max_num_seqs
    assert found.figures.ttft.p99 < 8 * best.served.speed.ttft_seconds.high


def test_no_more_is_served_than_comes_and_less_only_near_the_capacity() -> None:
    """One request in two seconds is answered even by a far slower server; nine tenths of the capacity are not."""
    supply = planned(num_users=None, requests_per_second=1.0).deployments[0].served.supply
    assert supply is not None
    lows = []
    for rate in (0.5, 0.9 * supply.middle):
        plan = planned(num_users=None, requests_per_second=rate)
        document = queues_document(plan.deployments[0].queues)
        assert document is not None
        low, middle, high = document["output_throughput"]
        assert low <= middle == high == pytest.approx(rate * 200, abs=0.01)
        lows.append(low / middle)
    assert lows[0] == 1.0 > lows[1]


@pytest.mark.parametrize("statistic", ["p50", "p99"])
def test_a_bound_of_a_percentile_is_compared_with_that_percentile(statistic: Literal["p50", "p99"]) -> None:
    """What averages serve with one GPU needs more of them, or serves by a part of the interval alone."""
    sizes = ParallelSizes(tensor=(1, 2), pipeline=(1,), data=(1,))
    alone = planned(sizes=sizes, max_gpus=2)
    first = alone.deployments[0].queues
    assert first is not None
    seen = first.figures.ttft.median if statistic == "p50" else first.figures.ttft.p99
    strict = planned(sizes=sizes, max_gpus=2, slo=Slo(ttft_seconds=0.95 * seen, ttft_of=statistic))
    assert strict.deployments[0].num_gpus > alone.deployments[0].num_gpus
    loose = planned(max_gpus=1, slo=Slo(ttft_seconds=1.05 * seen, ttft_of=statistic))
    assert not loose.deployments[0].verdict.meets and 0.5 < loose.deployments[0].verdict.confidence < 0.75
    interval = first.intervals["ttft"]
    assert interval is not None
    sure = planned(sizes=sizes, max_gpus=2, slo=Slo(ttft_seconds=interval.high * seen, ttft_of=statistic))
    assert sure.deployments[0].verdict.confidence >= 0.95
    assert sure.deployments[0].num_gpus == alone.deployments[0].num_gpus


def test_a_percentile_that_nothing_keeps_is_named_with_its_range() -> None:
    asked = planned()
    found = asked.deployments[0].queues
    assert found is not None
    plan = planned(slo=Slo(ttft_seconds=0.8 * found.figures.ttft.p99, ttft_of="p99"))
    assert plan.nearest_miss is not None and plan.nearest_miss.reason == "ttft"
    assert re.match(r"TTFT p99 would be \d+ to \d+ ms with 24 requests in progress", plan.nearest_miss.sentence)
    fix = cheapest_fix(plan)
    assert fix is not None
    assert "p99_ttft:" in fix.sentence or "GPUs" in fix.sentence or "format" in fix.sentence


def test_the_document_has_intervals() -> None:
    plan = planned()
    document = queues_document(plan.deployments[0].queues)
    assert document is not None
    for name in ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "output_throughput"):
        low, middle, high = document[name]
        assert 0 < low < high
        assert middle > 0
    assert document["intervals"]["tpot"]["num_rows"] >= 20
    assert queues_document(None) is None


@pytest.mark.parametrize("gpu", ["h100-sxm", "a10"])
def test_the_parts_of_a_step(gpu: str) -> None:
    """On a GPU with a profile of its kernels and on one without."""
    plan = planned(gpus=(find_gpu(gpu),), num_users=4)
    (_, decode, seconds), (_, mixed, longer) = explained_steps(plan.deployments[0], plan.workload)
    parts = {each.name: getattr(decode, each.name) for each in fields(decode)}
    assert min(parts.values()) >= 0
    assert parts["weights"] == max(parts.values())
    assert seconds <= 1.2 * sum(parts.values())
    assert seconds >= max(parts.values()) * 0.8
    assert longer > seconds
    assert mixed.products > decode.products
    # 16 GB at 3.35 TB/s (H100) or 0.6 TB/s (A10), read as fast as at most: 4.5 and 25 ms
    assert parts["weights"] > {"h100-sxm": 0.0045, "a10": 0.025}[gpu]


def test_no_replica_is_promised_more_than_its_server_has_time_for() -> None:
    """A model of 0.5 B parameters would make 80,000 tokens/s: a second server doubles what one streams."""
    small = resolve_model("qwen2.5-0.5b-instruct")
    asked = replace(REQUEST, num_users=1000, input_tokens=200)
    (one,) = make_plan(small, asked, load_measured()).deployments
    most = 200 / VLLM_FRONT_END.seconds(200)
    assert one.limit == "server" and one.served.server_share > 2
    assert one.output_tokens_per_second.middle == pytest.approx(most)
    assert one.served.speed.ttft_seconds.low <= one.served.speed.ttft_seconds.high
    few = make_plan(small, replace(asked, num_users=4), load_measured()).deployments[0]
    assert few.limit != "server" and few.served.server_share < 0.5
    replicas = make_plan(small, replace(asked, num_users=None, requests_per_second=1.5 * most / 200, max_gpus=2))
    assert {each.replicas for each in replicas.deployments} == {2}
    alone = make_plan(small, replace(asked, num_users=None, requests_per_second=1.5 * most / 200))
    assert alone.nearest_miss is not None
    assert "1 server of vLLM has time for; " in alone.nearest_miss.sentence


@pytest.mark.parametrize(
    ("share", "servers", "words"),
    [
        (0.8, 1, None),
        (0.91, 1, "API server would work for 91 % of the time"),
        (2.34, 2, "2 API servers can stream, the engine would make 2.3 times"),
    ],
)
def test_a_busy_server_is_said(share: float, servers: int, words: str | None) -> None:
    text = server_text(share, servers)
    assert text is None if words is None else text is not None and words in text and "--api-server-count" in text
