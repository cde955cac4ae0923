"""Latent attention to chosen tokens: what the choice adds to a layer, beside a table of measured kernels."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.kernels.sparse_latents import with_choice
from kvplan.estimate.speed.steps.measured_clock import MeasuredClock, rank_step
from kvplan.estimate.speed.steps.rank_step import KernelSpeed, LatentSpeed, RankStep, step_seconds
from kvplan.estimate.speed.steps.step_terms import StepLoad, measured_terms
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.estimate.speed.steps.work import ModelWork, model_work

KV_BYTES = 1284.0  # of a token and layer: latent and rotary key in 16 bits, the indexer's key


def _speed(engine: str = "vllm", version: str | None = "0.24.0") -> DeviceSpeed:
    """Of latent attention alone: 9 ps of a pair of 16 heads, and memory at 4.4 TB/s."""
    free = float("inf")
    per_pair = 2 * 16 * (128 + 64 + 128)
    speed = KernelSpeed(Speed(0.0, 0.0, 0.0, free, free, free, free), latent=LatentSpeed(0.0, 4.4e12, per_pair / 9e-12))
    return DeviceSpeed(speed, "kernels", "fp8-block", "tables", {}, engine, version)


def _work(ranks: int = 8) -> ModelWork:
    return model_work(resolve_model("deepseek-v3.2"), 85 * 10**9, "bfloat16", ParallelLayout(ranks))


def _step(work: ModelWork, *, tokens: int, sequences: int, kv_tokens: float, pairs: float) -> RankStep:
    return rank_step(
        work,
        tokens=tokens,
        rows=tokens,
        sequences=sequences,
        sampled=sequences,
        kv_bytes=61 * KV_BYTES * kv_tokens,
        pairs=pairs,
        kv_tokens=kv_tokens,
        expert_tokens=tokens,
    )


def _more_us(speed: DeviceSpeed, work: ModelWork, step: RankStep, gpu: str = "h200") -> float:
    """Beyond the same step without a choice, in a layer; experts and products are free here."""
    chosen = with_choice(speed, work, find_gpu(gpu)).speed
    return 1e6 * float(step_seconds(chosen, step) - step_seconds(speed.speed, step)) / 61


@pytest.mark.parametrize(
    ("prompts", "tokens", "chosen_us", "all_us"),
    [(64, 128, 3268, 1275), (32, 512, 6792, 2552), (16, 1024, 7690, 2338), (4, 2048, 4909, 1281)],
)
def test_prompts_of_tokens_that_are_all_chosen(prompts: int, tokens: int, chosen_us: int, all_us: int) -> None:
    """As aiconfigurator's table of an H200 has them with 16 heads."""
    work, rows = _work(), prompts * tokens
    step = _step(work, tokens=rows, sequences=prompts, kv_tokens=rows, pairs=prompts * tokens * (tokens + 1) / 2)
    assert all_us + _more_us(_speed(), work, step) == pytest.approx(chosen_us, rel=0.08)


def test_a_long_prompt_attends_to_2048_of_its_tokens() -> None:
    """35.4 ms of 32,768 tokens, 10.1 where all are attended to, 2.1 of which for those chosen."""
    work, tokens = _work(), 32768
    step = _step(work, tokens=tokens, sequences=1, kv_tokens=tokens, pairs=tokens**2 / 2)
    without_choice = 10128 - 1e6 * 9e-12 * (tokens**2 / 2 - tokens * 2048)
    assert without_choice + _more_us(_speed(), work, step) == pytest.approx(35356, rel=0.08)


@pytest.mark.parametrize(
    ("sequences", "context", "more_us"), [(1, 128, 81), (1, 1024, 98), (16, 512, 99), (64, 1024, 86), (256, 512, 108)]
)
def test_decode_steps(sequences: int, context: int, more_us: int) -> None:
    work = _work()
    step = _step(work, tokens=sequences, sequences=sequences, kv_tokens=sequences * context, pairs=sequences * context)
    assert _more_us(_speed(), work, step) == pytest.approx(more_us, abs=25)


def test_long_contexts_are_read_as_far_as_they_are_chosen() -> None:
    """The table has 703 us of 256 sequences with 32,768 tokens each, 2,265 without a choice."""
    work, read = _work(), 256 * 32768
    step = _step(work, tokens=256, sequences=256, kv_tokens=read, pairs=read)
    assert _more_us(_speed(), work, step) < -1400


def test_heads_of_a_rank_are_padded() -> None:
    def pairs_cost(ranks: int, gpu: str) -> float:
        sparse = with_choice(_speed(), _work(ranks), find_gpu(gpu)).speed.sparse
        assert sparse is not None
        return sparse.pair_seconds

    assert pairs_cost(8, "h200") == pairs_cost(2, "h200") == pairs_cost(1, "h200") / 2
    assert pairs_cost(8, "b200") == pairs_cost(1, "b200")


def test_sglang_reads_short_prompts_densely() -> None:
    work = _work()
    short = _step(work, tokens=8192, sequences=4, kv_tokens=8192, pairs=4 * 2048 * 2047 / 2)
    long = _step(work, tokens=8192, sequences=1, kv_tokens=8192, pairs=8192**2 / 2)
    assert _more_us(_speed("sglang"), work, short) == pytest.approx(0.0)
    assert _more_us(_speed("sglang"), work, long) > 3000


@pytest.mark.parametrize(
    ("speed", "model", "gpu"),
    [
        (_speed(), "deepseek-r1", "h200"),
        (_speed(version=None), "deepseek-v3.2", "h200"),
        (_speed("sglang"), "deepseek-v3.2", "b200"),
        (_speed("trtllm"), "deepseek-v3.2", "h200"),
        (_speed(), "deepseek-v3.2", "rtx-pro-6000"),
    ],
)
def test_others_stay(speed: DeviceSpeed, model: str, gpu: str) -> None:
    work = model_work(resolve_model(model), 85 * 10**9, "bfloat16", ParallelLayout(8))
    assert with_choice(speed, work, find_gpu(gpu)) is speed


@pytest.mark.parametrize("load", [StepLoad.decoding(16, 8000), StepLoad.decoding(1, 100).with_prompt(4000)])
def test_the_terms_of_a_step_have_the_choice_too(load: StepLoad) -> None:
    """Nothing but attention takes time here, so that terms add up."""
    work, gpu = _work(), find_gpu("h200")
    speed = with_choice(_speed(), work, gpu)
    clock = MeasuredClock(work, gpu, 61 * KV_BYTES * 1000, speed, 1000)
    terms = measured_terms(clock, load)
    alone = terms.launches + terms.kv_cache + terms.attention + terms.collectives
    found = clock.seconds(load.num_tokens, load.num_sequences, load.num_sequences, load.num_kv_tokens, load.num_pairs)
    assert alone == pytest.approx(found, rel=1e-6)


def test_those_that_decode_beside_a_prompt_choose_as_without_it() -> None:
    """Each sees all of its cache: 49 ps of a pair, where tokens of one prompt see each other in 17."""
    work, decoding, context = _work(), 512, 4096
    chosen = with_choice(_speed(), work, find_gpu("h200")).speed
    held, own = decoding * context, 512 * 513 / 2
    prompt = _step(work, tokens=512, sequences=1, kv_tokens=512, pairs=own)
    both = _step(work, tokens=512 + decoding, sequences=1 + decoding, kv_tokens=512 + held, pairs=own + held)
    more_us = 1e6 * float(step_seconds(chosen, both) - step_seconds(chosen, prompt)) / 61
    assert more_us > 1e6 * 49e-12 * held
