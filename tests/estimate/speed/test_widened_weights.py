"""Weights that Marlin widens: on data-centre Ampere alone, and as fast as it was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.kernels.widened_weights import with_widened_weights
from kvplan.estimate.speed.steps.rank_step import ExpertSpeed, KernelSpeed
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.estimate.speed.steps.work import ModelWork, model_work
from kvplan.estimate.weights import named_format

FAST = Speed(0.0, 0.0, 0.0, 1e12, 2.5e14, 1e12, 1e14)
SLOW_EXPERTS = ExpertSpeed(1e-5, 1e12, 1e14)


def _speed(**changes: object) -> DeviceSpeed:
    speed = DeviceSpeed(KernelSpeed(FAST, SLOW_EXPERTS), "kernels", "bfloat16", "note", {}, "vllm", "0.24.0")
    return replace(speed, **changes)


def _work(format_name: str) -> ModelWork:
    spec = replace(resolve_model("llama-3.1-8b"), quantization=named_format(format_name))
    return model_work(spec, 10**10, "bfloat16", ParallelLayout(1))


@pytest.mark.parametrize("format_name", ["fp8", "awq", "gptq", "int4", "nvfp4"])
@pytest.mark.parametrize(("gpu", "most"), [("a100-80gb-sxm", 141e12), ("a30", 141e12 * 165 / 312)])
def test_products_are_as_fast_as_marlin_and_what_is_slower_stays(format_name: str, gpu: str, most: float) -> None:
    found = with_widened_weights(_speed(), _work(format_name), find_gpu(gpu), "vllm").speed
    assert found.base.flops == pytest.approx(most, rel=0.01)
    assert found.experts is not None
    assert found.experts.flops == pytest.approx(min(SLOW_EXPERTS.flops, most), rel=0.01)
    assert (found.base.bandwidth, found.base.attention_flops) == (FAST.bandwidth, FAST.attention_flops)


@pytest.mark.parametrize(
    ("speed", "format_name", "gpu", "engine"),
    [
        (_speed(), "none", "a100-80gb-sxm", "vllm"),
        (_speed(), "int8", "a100-80gb-sxm", "vllm"),
        (_speed(), "awq", "a100-80gb-sxm", "trtllm"),
        (_speed(), "awq", "h100-sxm", "vllm"),
        (_speed(), "fp8", "l40s", "vllm"),
        (_speed(origin="calibrated"), "awq", "a100-80gb-sxm", "vllm"),
    ],
    ids=["16 bits", "8-bit activations", "another engine", "Hopper", "Ada", "measured on the device"],
)
def test_others_are_left_as_they_are(speed: DeviceSpeed, format_name: str, gpu: str, engine: str) -> None:
    assert with_widened_weights(speed, _work(format_name), find_gpu(gpu), engine) is speed
