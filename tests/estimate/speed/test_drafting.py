"""An engine that drafts, played and in closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.estimate.answer import EstimateRequest, make_estimate
from kvplan.estimate.document import speed_document
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.device_speed import DeploymentSpeed
from kvplan.estimate.speed.engine_speed import engine_speed_model
from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.speed.queueing.drafting import Drafting, DraftWork
from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad, steady_users, users
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.speculation import speculative_speedup
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
