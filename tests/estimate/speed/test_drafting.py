"""Speculative decoding: what it gains and costs, and an engine that drafts, played and in closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.errors import UsageError
from kvplan.estimate.answer import EstimateAnswer, EstimateRequest, make_estimate
from kvplan.estimate.document import speed_document
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.device_speed import DeploymentSpeed
from kvplan.estimate.speed.engine_speed import engine_speed_model
from kvplan.estimate.speed.latency import Range, SpeedModel
from kvplan.estimate.speed.queueing.drafting import Drafting, DraftWork, expected_tokens
from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad, steady_users, users
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.speculation import speculative_speedup, speculative_step_seconds
from kvplan.estimate.speed.steps.work import ModelWork, model_work
from kvplan.settings import ServingSettings

RULES = SchedulingRules(max_num_seqs=64, max_num_batched_tokens=256, pool_tokens=1e9)
L4 = find_gpu("l4")


class EvenClock:
    """Every step takes a second; keeps the tokens of each."""

    def __init__(self) -> None:
        self.tokens: list[float] = []

    def seconds(self, num_tokens: float, *of_a_step: float) -> float:
        self.tokens.append(num_tokens)
        return 1.0


@pytest.mark.parametrize(("per_step", "rows", "steps"), [(1, 1, 8), (1, 3, 8), (2, 3, 4), (2.4, 3, 4), (3, 3, 3)])
def test_an_answer_takes_fewer_steps(per_step: float, rows: int, steps: int) -> None:
    """Of nine tokens the first comes with the prompt; the others as many at a time as a step yields."""
    drafting = replace(RULES, rows_per_sequence=rows, tokens_per_step=per_step)
    played = play(users(1, 100, 9, rounds=3), drafting, EvenClock())
    assert played.e2el.mean == 1 + steps and played.ttft.mean == 1
    assert played.tpot is not None and played.tpot.mean == pytest.approx(steps / 8)


def test_draft_tokens_take_their_share_of_a_step() -> None:
    """Eight sequences that verify three draft tokens each have 32 of a step's 64 tokens; a prompt has the rest."""
    rules = replace(RULES, max_num_batched_tokens=64, rows_per_sequence=4, tokens_per_step=1.5)
    clock = EvenClock()
    play(steady_users(9, 300, 60), rules, clock)
    assert max(clock.tokens) == 64
    assert min(clock.tokens) >= 4


def test_a_full_pool_preempts_and_all_answers_end() -> None:
    rules = replace(RULES, pool_tokens=400, rows_per_sequence=3, tokens_per_step=1.7)
    load = PlayedLoad(
        LengthDistribution(60, "uniform", 0.5), LengthDistribution(60, "uniform", 0.5), 40, max_concurrency=8
    )
    played = play(load, rules, EvenClock())
    assert played.num_preemptions > 0
    assert played.e2el.p99 > played.e2el.median > 60 / 1.7


def _work(name: str) -> ModelWork:
    spec = resolve_model(name)
    return model_work(spec, 2 * spec.num_parameters, "bfloat16", ParallelLayout())


def _model(drafting: Drafting | None) -> SpeedModel:
    engine = EngineChoice("vllm", "0.33.0")
    model = engine_speed_model(engine, _work("llama-3.1-8b"), L4, 512, 129, 576 * 131_072, None, step_tokens=2048)
    return replace(model, drafting=drafting)


DRAFT = DraftWork(4, 4, _work("llama-3.2-1b"), 576 * 32_768)


@pytest.mark.parametrize("num_users", [1, 4])
@pytest.mark.parametrize("draft", [DRAFT, DraftWork(4)])
def test_tokens_come_as_much_faster_as_an_estimate_says(num_users: int, draft: DraftWork) -> None:
    """By the data sheet, where the host hides: what a step of the model and the drafter's passes cost, and yield."""
    plain, drafted = (_model(each).steady(num_users, "middle") for each in (None, Drafting(draft, 0.7)))
    gain = speculative_speedup(_work("llama-3.1-8b"), draft, L4, num_users, 576 * 131_072, 0.7)
    ratio = plain.tpot_seconds / drafted.tpot_seconds
    tolerance = 1.1 if num_users == 1 else 1.35  # beside prompts, which draft no faster
    assert gain.low / tolerance < ratio < gain.high * tolerance


@pytest.mark.parametrize("num_users", [1, 8, 48])
def test_the_closed_form_says_what_a_play_does(num_users: int) -> None:
    model = _model(Drafting(DRAFT, 0.7))
    rules = replace(RULES, max_num_batched_tokens=2048, rows_per_sequence=5, tokens_per_step=model.tokens_per_step)
    state = model._of_engine(num_users, "middle")
    played = play(steady_users(num_users, 512, 129, state.reading_share), rules, model.steps)
    assert played.tpot is not None
    assert state.tpot_seconds == pytest.approx(played.tpot.mean, rel=0.1)
    assert state.e2el_seconds == pytest.approx(played.e2el.mean, rel=0.1)


def test_no_time_is_below_what_the_data_sheet_allows() -> None:
    model = _model(Drafting(DraftWork(4), 0.9))
    bounds, plain = model.bounds(1), _model(None).bounds(1)
    assert bounds.tpot_seconds == pytest.approx(plain.tpot_seconds / model.tokens_per_step)
    assert model.speed(1).tpot_seconds.low >= bounds.tpot_seconds


def _speeds(**settings: object) -> DeploymentSpeed:
    request = EstimateRequest(gpus=(find_gpu("h200"),), settings=ServingSettings(**settings))  # type: ignore[arg-type]
    speed = make_estimate(resolve_model("qwen3.5-27b"), request, load_measured()).speeds[0]
    assert speed is not None
    return speed


def test_an_estimate_has_the_times_of_an_engine_that_drafts_and_says_so() -> None:
    """Before, they were those of an engine that reads the drafter's weights in every step and drafts nothing."""
    plain, told = (
        _speeds(max_model_len=4096),
        _speeds(max_model_len=4096, num_speculative_tokens=1, acceptance_rate=0.8),
    )
    assert plain.drafting_text() == ""
    assert told.drafting_text() == "1 draft token a step, each accepted with a chance of 80 %"
    ratio = plain.alone.tpot_seconds.middle / told.alone.tpot_seconds.middle
    assert 1.5 < ratio < 1.8, "tokens of a step, less the drafter's pass"
    assert speed_document(told)["speculation"] == {
        "num_speculative_tokens": 1,
        "acceptance_rate": 0.8,
        "assumed": False,
        "tokens_per_step": 1.8,
    }


def test_what_is_assumed_of_a_drafter_is_in_the_interval() -> None:
    told, assumed = (
        _speeds(max_model_len=4096, num_speculative_tokens=1, acceptance_rate=rate) for rate in (0.7, None)
    )
    assert "assumed" in assumed.drafting_text()
    known, wider = (each.model.error_interval("tpot") for each in (told, assumed))
    assert known is not None and wider is not None
    assert wider.low == pytest.approx(known.low * 1.7 / 1.9) and wider.high == pytest.approx(known.high * 1.7 / 1.5)
    assert told.model.error_interval("ttft") == assumed.model.error_interval("ttft")


H100 = find_gpu("h100-sxm")
ALONE = ParallelLayout()


def work(name: str) -> ModelWork:
    spec = resolve_model(name)
    return model_work(spec, 2 * spec.num_parameters, "bfloat16", ALONE)


def speedup(name: str, draft: DraftWork, users: float, rate: float) -> Range:
    return speculative_speedup(work(name), draft, H100, users, 1e8, rate)


@given(rate=st.floats(0.01, 0.99), tokens=st.integers(1, 16))
def test_tokens_per_step_are_the_papers(rate: float, tokens: int) -> None:
    """arXiv:2211.17192, equation 1."""
    assert expected_tokens(rate, tokens) == pytest.approx((1 - rate ** (tokens + 1)) / (1 - rate))


def test_tokens_per_step_at_the_ends() -> None:
    assert expected_tokens(1.0, 4) == 5
    assert expected_tokens(0.0, 4) == 1


def test_tokens_that_are_looked_up_are_verified_for_nothing_while_memory_is_what_is_waited_for() -> None:
    found = speedup("llama-3.1-8b", DraftWork(4), users=1, rate=0.7)
    assert found.low == pytest.approx(expected_tokens(0.7, 4), rel=0.02)
    assert found.high == pytest.approx(expected_tokens(0.7, 4), rel=0.02)


def test_a_batch_bound_by_arithmetic_gets_slower() -> None:
    found = speedup("llama-3.1-8b", DraftWork(4), users=1024, rate=0.5)
    assert found.high < 1


def test_a_drafter_as_large_as_its_target_gains_nothing() -> None:
    """Five tokens for five passes of the same weights: at best as fast, less the one step that is paid for."""
    draft = DraftWork(4, 4, work("llama-3.1-8b"), 1e8)
    found = speedup("llama-3.1-8b", draft, users=1, rate=1.0)
    assert found.low == pytest.approx(1, abs=0.3)
    assert speedup("llama-3.1-8b", draft, users=1, rate=0.5).high < 1


def test_a_small_drafter_costs_its_passes_only() -> None:
    small = DraftWork(4, 4, work("llama-3.2-1b"), 2e7)
    with_it = speedup("llama-3.1-70b", small, users=1, rate=0.7)
    looked_up = speedup("llama-3.1-70b", DraftWork(4), users=1, rate=0.7)
    assert 0.8 * looked_up.low < with_it.low < looked_up.low


def test_all_tokens_at_once_cost_one_pass() -> None:
    four, one = (DraftWork(4, passes, work("llama-3.2-1b")) for passes in (4, 1))
    seconds = [speculative_step_seconds(work("llama-3.1-8b"), draft, H100, 1, 1e8).low for draft in (four, one)]
    assert seconds[1] < 0.8 * seconds[0]


def test_verifying_wakes_more_experts_than_one_token() -> None:
    """Four tokens of one sequence meet up to four times as many experts, so even looked-up tokens are not free."""
    found = speedup("qwen3-30b-a3b", DraftWork(3), users=1, rate=0.9)
    assert found.high < 0.8 * expected_tokens(0.9, 3)


@given(
    users=st.floats(1, 2000),
    tokens=st.integers(1, 8),
    rates=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)),
)
def test_a_higher_acceptance_rate_is_never_slower(users: float, tokens: int, rates: tuple[float, float]) -> None:
    low, high = (speedup("llama-3.1-8b", DraftWork(tokens), users, rate) for rate in sorted(rates))
    assert 0 < low.low <= high.low + 1e-12
    assert low.high <= high.high + 1e-12
    assert high.high <= tokens + 1 + 1e-9


def estimate(name: str, engine: str = "vllm", **settings: object) -> EstimateAnswer:
    asked = ServingSettings(**settings)  # type: ignore[arg-type]
    return make_estimate(resolve_model(name), EstimateRequest(8192, (H100,), EngineChoice.parse(engine), asked))


def test_an_estimate_names_the_drafters_part() -> None:
    found = estimate("llama-3.1-8b", speculative_model="llama-3.2-1b", num_speculative_tokens=3)
    assert found.speculation is not None
    small = resolve_model("llama-3.2-1b")
    (deployment,) = found.speculation.deployments
    assert deployment is not None
    assert deployment.weight_bytes == pytest.approx(2 * small.num_parameters, rel=0.01)
    assert found.speculation.bytes_per_token == 16 * 2 * 8 * 64 * 2
    assert [gain.acceptance_rate for gain in deployment.gains] == [0.5, 0.7, 0.9]
    assert all(gain.full.low <= gain.alone.high for gain in deployment.gains)


def test_one_rate_where_it_is_given() -> None:
    found = estimate("mimo-7b-base", num_speculative_tokens=1, acceptance_rate=0.8)
    assert found.speculation is not None and found.speculation.deployments[0] is not None
    (gain,) = found.speculation.deployments[0].gains
    assert (gain.acceptance_rate, gain.tokens_per_step) == (0.8, 1.8)


def test_without_a_drafter_there_is_no_such_part() -> None:
    assert estimate("llama-3.1-8b").speculation is None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("mimo-7b-base", "runs a drafter with layers on a CPU"), ("glm-5.1", "does not run the layers")],
)
def test_kvplans_engine_speculates_by_some_models_own_layers(name: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        estimate(name, engine="kvplan", num_speculative_tokens=1)
