"""Experts in MXFP4 and in integers of 4 bits, by the kernels that engines run them on."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.kernels.few_bits import with_few_bits
from kvplan.estimate.speed.steps.rank_step import ExpertSpeed
from kvplan.estimate.speed.steps.work import ModelWork, model_work

INTEGERS = "Qwen/Qwen3-Coder-30B-A3B-Instruct-AWQ"


def _work(model: str) -> ModelWork:
    return model_work(resolve_model(model), 10**10, "bfloat16", ParallelLayout(1))


def _experts(engine: str, gpu: str, model: str = "gpt-oss-120b") -> tuple[ExpertSpeed, ExpertSpeed]:
    """(as fitted in 16 bits, those of the model's weights)."""
    name, _, version = engine.partition("@")
    work, profile = _work(model), find_gpu(gpu)
    measured = load_measured(None).for_gpu(profile, work.speed_format, name)
    assert measured is not None
    fitted = DeviceSpeed.of(measured, model, work.speed_format)
    found = with_few_bits(fitted, work, profile, EngineChoice(name, version or "latest"))
    assert fitted.speed.experts is not None and found.speed.experts is not None
    return fitted.speed.experts, found.speed.experts


def test_formats_are_told_apart() -> None:
    assert [_work(each).four_bits for each in ("gpt-oss-120b", INTEGERS)] == ["mxfp4", "int4"]
    assert {_work(each).four_bits for each in ("qwen3-30b-a3b", "minimax-m2.5", "nvidia/Kimi-K2.5-NVFP4")} == {""}


@pytest.mark.parametrize(("gpu", "reached"), [("h100-sxm", 2.54 / 3.55), ("h200", 2.69 / 5.12)])
def test_triton_kernels_read_mxfp4_no_faster_than_their_table(gpu: str, reached: float) -> None:
    fitted, found = _experts("vllm@0.24.0", gpu)
    assert found.bandwidth / fitted.bandwidth == pytest.approx(reached, rel=0.05)


@pytest.mark.parametrize(("gpu", "reached"), [("h100-sxm", 1.0), ("h200", 4.05 / 5.12)])
def test_marlin_hides_less_of_a_faster_memory(gpu: str, reached: float) -> None:
    for engine in ("vllm@0.24.0", "sglang@0.5.14"):
        fitted, found = _experts(engine, gpu, INTEGERS)
        assert found.bandwidth / fitted.bandwidth == pytest.approx(reached, rel=0.05)


def test_hoppers_kernel_for_mxfp4_goes_by_vllms_release() -> None:
    marlin, older, newer = (_experts(f"vllm@{version}", "h200")[1] for version in ("0.11.0", "0.11.1", "0.24.0"))
    assert marlin.bandwidth > older.bandwidth == newer.bandwidth
    assert older.layer_seconds > marlin.layer_seconds > newer.layer_seconds


def test_triton_kernels_beside_marlin_as_measured() -> None:
    """Of eight sequences of gpt-oss-120b: 1.17 and 1.58 s for 128 tokens through 36 layers, 89 us a layer."""
    work = _work("gpt-oss-120b")
    read = work.touched_experts(8) * 128 * 3 * 2880 * 2880 * 4.25 / 8
    marlin, older = (_experts(f"vllm@{version}", "h200")[1] for version in ("0.11.0", "0.11.1"))
    seconds = [each.layer_seconds + read / each.bandwidth for each in (marlin, older)]
    assert seconds[1] - seconds[0] == pytest.approx((1.58 - 1.17) / 128 / 36, rel=0.35)


def test_other_formats_and_gpus_without_a_table_are_left_as_they_are() -> None:
    for engine, gpu, model in (
        ("vllm", "h200", "qwen3-30b-a3b"),
        ("vllm", "l40s", "gpt-oss-120b"),
        ("trtllm", "h200", INTEGERS),
    ):
        fitted, found = _experts(engine, gpu, model)
        assert found == fitted
