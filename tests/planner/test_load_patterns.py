"""Loads as people have them: users who think, prompts that begin alike, turns of chats, and how lengths spread."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import correlation

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.errors import UsageError
from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad, Spread, steady_rate, steady_users
from kvplan.estimate.speed.queueing.sharing import PromptSharing
from kvplan.estimate.speed.queues import Queues
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.estimate.vllm.prefix_hits import PrefixHits, prefix_hits
from kvplan.planner.answer.notes import drafting_sentence, hits_document, hits_sentence
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.choices.evaluation import PlayedReplica
from kvplan.planner.launch.engines import launch_commands, vllm_command
from kvplan.planner.question.pattern import LoadPattern, load_pattern
from kvplan.planner.question.request import ParallelSizes, PlanRequest, complete
from kvplan.planner.search.plan import PlanAnswer, make_plan
from kvplan.settings import ServingSettings

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


def planned(pattern: LoadPattern = LoadPattern(), **changes: object) -> PlanAnswer:
    return make_plan(SPEC, replace(REQUEST, pattern=pattern, **changes), load_measured())  # type: ignore[arg-type]


def played(plan: PlanAnswer) -> tuple[PlannedDeployment, Queues]:
    best = plan.deployments[0]
    parts = (best.choice, best.replicas, best.prediction, best.capacity, best.speed_model)
    found = PlayedReplica(plan.workload, *parts).play(best.served)
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


def test_bursts_lengthen_the_tail_and_leave_the_rate() -> None:
    """The same rate in gaps of another shape, on a deployment that keeps up with it."""
    spreads = [LoadPattern(burstiness=each) for each in (100.0, 1.0, 0.1)]
    found = [played(planned(each, num_users=None, requests_per_second=6.0))[1] for each in spreads]
    even, poisson, bursty = (each.figures.ttft.p99 for each in found)
    assert even < poisson < bursty
    assert found[0].output_throughput == pytest.approx(found[2].output_throughput)


def test_a_load_of_bursts_has_the_asked_rate() -> None:
    load = PlayedLoad(LengthDistribution(100), LengthDistribution(10), 400, 8.0, burstiness=0.2)
    assert load.arrivals[-1] == pytest.approx(400 / 8.0, rel=0.1)


@pytest.mark.parametrize("in_progress", [0, 1, 20])
def test_a_gap_is_as_long_behind_a_long_prompt_as_behind_a_short_one(in_progress: int) -> None:
    """Otherwise nobody came beside what takes long to read, and p99 of a first token were a fifth too short."""
    load = steady_rate(2.0, in_progress, 100, 20)
    prompts = [prompt for prompt, _ in load.lengths]
    gaps = [later - earlier for earlier, later in pairwise(load.arrivals)]
    for shift in (-1, 0, 1):
        beside = prompts[in_progress + 1 + shift : len(gaps) + shift]
        assert abs(correlation(beside, gaps[in_progress + 1 :])) < 0.2


@pytest.mark.parametrize("shape", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_shape_is_refused(shape: float) -> None:
    with pytest.raises(UsageError, match="--burstiness"):
        load_pattern(burstiness=shape)


def test_users_do_not_come_in_bursts() -> None:
    with pytest.raises(UsageError, match="--request-rate"):
        complete(replace(REQUEST, pattern=LoadPattern(burstiness=0.5)), SPEC)


def shared(**sharing: object) -> LoadPattern:
    return LoadPattern(sharing=PromptSharing(**sharing))  # type: ignore[arg-type]


ONE_PREFIX = shared(prefix_tokens=3072)
"""Of prompts with 1,024 tokens of their own: three quarters are found."""


def test_a_shared_prefix_is_read_and_held_once() -> None:
    """96 users with prompts of 4,096 tokens, of which all have the first 3,072."""
    whole, whole_play = played(planned(num_users=96, input_tokens=4096))
    best, found = played(planned(ONE_PREFIX, num_users=96, input_tokens=1024))
    assert whole.speed_model.input_tokens == best.speed_model.input_tokens == 4096
    assert best.capacity.average_sequences > 3 * whole.capacity.average_sequences
    assert found.figures.ttft.median < 0.55 * whole_play.figures.ttft.median
    assert best.served.middle is not None and found.figures.tpot is not None
    assert best.served.middle.tpot_seconds == pytest.approx(found.figures.tpot.mean, rel=0.1)
    assert best.served.middle.e2el_seconds == pytest.approx(found.figures.e2el.mean, rel=0.1)
    document = hits_document(best)
    assert document == {"prompt_tokens": 4096, "cached_tokens": 3072.0, "hit_rate": 0.75}


def test_more_prefixes_than_the_pool_holds_are_found_less_often() -> None:
    """And never as often as stated silently: 1,000 prefixes of 3,072 tokens are 3 million, the pool has 460,000."""
    few, many = (
        played(planned(shared(prefix_tokens=3072, num_prefixes=count), num_users=64, input_tokens=1024))
        for count in (10, 1000)
    )
    hits = [document["hit_rate"] for each in (few, many) if (document := hits_document(each[0]))]
    assert hits[0] == pytest.approx(0.75, abs=0.01) and hits[1] < 0.15
    assert few[0].capacity.average_sequences > 2 * many[0].capacity.average_sequences
    sentence = hits_sentence(many[0])
    assert sentence is not None and "with a larger KV pool 3,072 would be" in sentence
    assert few[1].figures.ttft.median < many[1].figures.ttft.median
    middle, figures = many[0].served.middle, many[1].figures
    assert middle is not None and middle.e2el_seconds == pytest.approx(figures.e2el.mean, rel=0.12)


def test_a_stated_hit_rate_saves_reading_and_no_memory() -> None:
    whole, stated = (planned(each, num_users=96, input_tokens=4096) for each in (LoadPattern(), shared(hit_rate=0.75)))
    (before, slow), (best, fast) = played(whole), played(stated)
    assert best.capacity.average_sequences == before.capacity.average_sequences
    assert fast.figures.ttft.median < 0.55 * slow.figures.ttft.median
    sentence = hits_sentence(best)
    assert sentence is not None and "is not checked" in sentence


def test_turns_of_a_chat_are_found_only_where_prefixes_are_cached() -> None:
    """Five turns of 200 + 200 tokens: prompts of 1,000 on average, of which 800 were read before."""
    chats = LoadPattern(think_seconds=10.0, sharing=PromptSharing(turns=5))
    best, found = played(planned(chats, num_users=200, input_tokens=200))
    assert best.speed_model.input_tokens == 1000
    document = hits_document(best)
    assert document is not None and document["cached_tokens"] == pytest.approx(800, abs=25)
    off = replace(REQUEST.settings, enable_prefix_caching=False)
    again, without = played(planned(chats, num_users=200, input_tokens=200, settings=off))
    assert found.figures.ttft.mean < without.figures.ttft.mean
    assert "--no-enable-prefix-caching" in vllm_command(again, "llama")
    assert hits_document(again) == {"prompt_tokens": 1000, "cached_tokens": 0.0, "hit_rate": 0.0}
    for each, seen in ((best, found), (again, without)):
        assert each.served.middle is not None
        assert each.served.middle.e2el_seconds == pytest.approx(seen.figures.e2el.mean, rel=0.15)


def test_chats_that_begin_at_a_rate_send_as_many_requests_as_was_asked_for() -> None:
    chats = LoadPattern(think_seconds=10.0, sharing=PromptSharing(turns=5))
    best, found = played(planned(chats, num_users=None, requests_per_second=8.0, input_tokens=200))
    assert best.served.num_users == pytest.approx(8 * found.figures.e2el.mean, rel=0.3)
    assert found.output_throughput == pytest.approx(8 * 200)


def test_a_chat_has_room_for_its_last_turn() -> None:
    workload = complete(replace(REQUEST, input_tokens=200, pattern=shared(turns=5, prefix_tokens=1000)), SPEC)
    assert workload.longest_context == 1000 + 5 * 534, "turns of 400 tokens spread to four thirds of that"
    assert (workload.input_tokens, workload.message_tokens) == (1000 + 200 + 2 * 400, 200)
    with pytest.raises(UsageError, match="do not fit --ctx-max 1,999"):
        complete(replace(REQUEST, input_tokens=200, longest_context=1999, pattern=shared(turns=5)), SPEC)
    with pytest.raises(UsageError, match="--turns needs --input-len"):
        complete(replace(REQUEST, input_tokens=None, pattern=shared(turns=5)), SPEC)


@pytest.mark.parametrize("spread", ["fixed", "uniform", "exponential"])
def test_a_server_admits_every_request_that_is_played(spread: Spread) -> None:
    longest = complete(replace(REQUEST, pattern=LoadPattern(length_spread=spread)), SPEC).longest_context
    sent = [sum(each) for each in steady_users(300, 1000, 200).spread_as(spread, longest).lengths]
    assert longest == {"fixed": 1200, "uniform": 1600, "exponential": 6000}[spread]
    assert max(sent) <= longest
    assert sum(sent) / len(sent) == pytest.approx(1200, rel=0.01), "cutting takes little of the load"


def test_a_context_below_what_is_played_says_what_a_server_refuses() -> None:
    def notes(**given: object) -> str:
        return " ".join(complete(replace(REQUEST, **given), SPEC).assumptions)

    assert "a server refuses what is longer" not in notes() + notes(longest_context=1600)
    assert "refuses what is longer. Requests of these lengths have up to 1,600 tokens" in notes(longest_context=1500)
    cut = {"longest_context": 1600, "pattern": LoadPattern(length_spread="exponential")}
    assert "up to 6,000 tokens, which are cut there" in notes(**cut)
    most = {"input_tokens": 120_000}
    assert complete(replace(REQUEST, **most), SPEC).longest_context == 131_072, "positions of the model"
    assert "up to 160,267 tokens" in notes(**most)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_prefixes": 4}, "--num-prefixes needs --prefix-len"),
        ({"prefix_hit_rate": "0.8", "prefix_len": "1k"}, "--prefix-hit-rate cannot be used with --prefix-len"),
        ({"prefix_hit_rate": "0.8", "turns": 3}, "--prefix-hit-rate cannot be used with --turns"),
        ({"prefix_hit_rate": "1"}, "less than 1"),
        ({"prefix_hit_rate": "much"}, "--prefix-hit-rate"),
        ({"turns": 0}, "--turns must be 1 or more"),
    ],
)
def test_patterns_that_contradict_themselves_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_pattern(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "version", "shares", "found"),
    [
        ("llama-3.1-8b", "0.33.0", True, PrefixHits(16)),
        ("llama-3.1-8b", "0.6.0", True, PrefixHits(0)),  # off by default in the first engine
        ("gemma-3-27b", "0.33.0", True, PrefixHits(16)),
        ("qwen3.5-27b", "0.33.0", True, PrefixHits(784)),  # whole blocks, which are as long as a state is large
        ("qwen3.5-27b", "0.31.0", True, PrefixHits(0)),  # not known to keep the state behind a prefix
        ("qwen3.5-27b", "0.31.0", False, PrefixHits(784)),
        ("qwen3.5-27b", "0.25.0", False, PrefixHits(0)),
    ],
)
def test_what_vllm_finds_depends_on_model_and_release(
    model: str, version: str, shares: bool, found: PrefixHits
) -> None:
    spec = resolve_model(model)
    predicted = predict_vllm(spec, find_gpu("h200"), ServingSettings(max_model_len=4096), version)
    serving, release = predicted.settings.serving, vllm_release(predicted.version)
    assert prefix_hits(spec, serving, release, predicted.rank.blocks, shares_prefixes=shares) == found


def drafted(count: int, rate: float | None) -> ServingSettings:
    return replace(REQUEST.settings, num_speculative_tokens=count, speculative_method="ngram", acceptance_rate=rate)


def test_a_plan_has_the_times_of_an_engine_that_drafts() -> None:
    plain, plain_play = played(planned(num_users=4))
    best, found = played(planned(num_users=4, settings=drafted(4, 0.7)))
    assert plain_play.figures.tpot is not None and found.figures.tpot is not None
    assert found.figures.tpot.mean < 0.5 * plain_play.figures.tpot.mean
    assert best.served.middle is not None and plain.served.middle is not None
    assert best.served.middle.tpot_seconds == pytest.approx(found.figures.tpot.mean, rel=0.1)
    assert best.speed_model.tokens_per_step == pytest.approx(1 + 0.7 + 0.7**2 + 0.7**3 + 0.7**4)
    commands = launch_commands(best, "llama")
    assert list(commands) == ["vllm"], "other engines would serve without"
    assert """--speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'""" in commands["vllm"]
    sentence = drafting_sentence(best)
    assert sentence is not None and "4 draft tokens a step, accepted with a chance of 70 % each: 2.77" in sentence


def test_a_drafter_needs_an_acceptance_rate() -> None:
    """Which is guessed for nobody."""
    with pytest.raises(UsageError, match="--acceptance-rate"):
        planned(settings=drafted(4, None))


def test_weights_and_cache_of_a_drafter_are_in_the_plan() -> None:
    small = replace(REQUEST.settings, speculative_model="llama-3.2-1b", num_speculative_tokens=4, acceptance_rate=0.7)
    with_model, without = planned(num_users=4, settings=small), planned(num_users=4)
    (best, _), (plain, _) = played(with_model), played(without)
    more = best.prediction.rank.weight_bytes - plain.prediction.rank.weight_bytes
    assert more == pytest.approx(2 * 1.236e9, rel=0.02)
    assert best.capacity.average_bytes == pytest.approx(plain.capacity.average_bytes * (32 + 8) / 32, rel=0.03)
    assert best.speed_model.work == plain.speed_model.work


def test_the_answer_says_how_lengths_spread() -> None:
    said = {each: load_pattern(length_spread=each).sentence(of_users=True) for each in ("fixed", "exponential")}
    assert "from two thirds of their means to four thirds" in load_pattern().sentence(of_users=True)
    assert "lockstep" in said["fixed"]
    assert "exponentially" in said["exponential"]
