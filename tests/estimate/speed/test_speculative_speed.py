"""What speculative decoding gains: tokens per step, and its cost by bytes and operations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.errors import UsageError
from kvplan.estimate.answer import EstimateAnswer, EstimateRequest, make_estimate
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.latency import Range
from kvplan.estimate.speed.queueing.drafting import DraftWork, expected_tokens
from kvplan.estimate.speed.speculation import speculative_speedup, speculative_step_seconds
from kvplan.estimate.speed.steps.work import ModelWork, model_work
from kvplan.settings import ServingSettings

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
