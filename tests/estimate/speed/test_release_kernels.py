"""Mixtures in releases that are older than the tables of their kernels."""

from __future__ import annotations

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.kernels.release_kernels import of_release
from kvplan.estimate.speed.steps.rank_step import ExpertSpeed, KernelSpeed
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.estimate.speed.steps.work import ModelWork, model_work

EXPERTS = ExpertSpeed(1e-5, 4e12, 8e14)


def _speed(version: str = "0.24.0", engine: str = "vllm") -> DeviceSpeed:
    speed = KernelSpeed(Speed(0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0), EXPERTS)
    return DeviceSpeed(speed, "kernels", "bfloat16", "note", {}, engine, version)


def _work(name: str) -> ModelWork:
    return model_work(resolve_model(name), 10**10, "bfloat16", ParallelLayout(8))


def test_shapes_that_nobody_had_tuned_took_twice_as_long_before_0_17() -> None:
    old = of_release(_speed(), _work("glm-4.5"), vllm_release("0.11.0")).speed.experts
    assert old is not None
    assert (old.flops, old.bandwidth) == (EXPERTS.flops / 2, pytest.approx(0.9 * EXPERTS.bandwidth))


def test_their_tiles_had_64_rows_for_more_tokens_than_experts() -> None:
    found = of_release(_speed(), _work("glm-4.5"), vllm_release("0.11.0")).speed
    assert [found.all_tile_rows(tokens, 160) for tokens in (160, 161)] == [(1, 16), (1, 64)]
    assert _speed().speed.all_tile_rows(160, 160) == (1, 1)


@pytest.mark.parametrize(
    ("speed", "model", "release"),
    [
        (_speed(), "glm-4.5", "0.17.0"),
        (_speed("0.14.0"), "glm-4.5", "0.11.0"),
        (_speed(engine="sglang"), "glm-4.5", "0.11.0"),
        (_speed(), "mixtral-8x7b", "0.11.0"),
        (_speed(), "qwen3-235b-a22b", "0.11.0"),
        (_speed(), "gpt-oss-120b", "0.11.0"),
        (_speed(), "llama-3.1-8b", "0.11.0"),
    ],
    ids=["newer", "tables as old", "SGLang", "tuned", "tuned too", "4-bit kernels", "dense"],
)
def test_what_the_tables_say_of_all_others(speed: DeviceSpeed, model: str, release: str) -> None:
    assert of_release(speed, _work(model), vllm_release(release)) is speed
