"""SGLang's experts: their kernel on Blackwell by model and release, and the launches around Triton's."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.kernels.expert_backends import with_backend
from kvplan.estimate.speed.steps.kernels.sglang_experts import runs_trtllm_on_blackwell
from kvplan.estimate.speed.steps.rank_step import ExpertSpeed
from kvplan.estimate.speed.steps.work import ModelWork, model_work


def _work(model: str, ranks: int = 8) -> ModelWork:
    return model_work(resolve_model(model), 10**10, "bfloat16", ParallelLayout(ranks))


def _experts(
    model: str, gpu: str, version: str, asked: str = "auto", ranks: int = 8
) -> tuple[ExpertSpeed, ExpertSpeed]:
    """(as fitted, as ``version`` runs them)."""
    work, profile = _work(model, ranks), find_gpu(gpu)
    measured = load_measured(None).for_gpu(profile, work.speed_format, "sglang")
    assert measured is not None
    fitted = DeviceSpeed.of(measured, model, work.speed_format)
    found = with_backend(fitted, work, profile, EngineChoice("sglang", version), asked)
    assert fitted.speed.experts is not None and found.speed.experts is not None
    return fitted.speed.experts, found.speed.experts


@pytest.mark.parametrize(
    ("model", "first"),
    [
        ("deepseek-r1", "0.5.4"),
        ("kimi-k2", "0.5.4"),
        ("qwen3-30b-a3b-fp8", "0.5.6"),
        ("qwen3-235b-a22b", "0.5.14"),
        ("qwen3-next-80b-a3b", "0.5.14"),
        ("glm-4.5", "0.5.14"),
        ("nemotron-3-nano-30b-a3b-bf16", "0.5.13"),
        ("mimo-v2-flash", "latest"),
        ("minimax-m2.5", None),
        ("mixtral-8x7b", None),
    ],
)
def test_tensorrt_llms_experts_on_blackwell_have_a_rule_for_each_class(model: str, first: str | None) -> None:
    releases = ("0.5.3", "0.5.4", "0.5.5", "0.5.6", "0.5.13", "0.5.14", "latest")
    found = [runs_trtllm_on_blackwell(_work(model), sglang_release(version)) for version in releases]
    expected = [False] * len(releases)
    if first is not None:
        expected = [index >= releases.index(first) for index in range(len(releases))]
    assert found == expected


def test_triton_on_blackwell_takes_what_its_table_has_more() -> None:
    """Of 256 experts of 1,536 over four ranks, in blocks: 34 us of one token and 27, 214 and 132 of 64."""
    by_trtllm, by_triton = _experts("minimax-m2.5", "b200", "0.5.14", ranks=4)
    assert by_triton.layer_seconds - by_trtllm.layer_seconds == pytest.approx(34e-6 - 27e-6, rel=0.05)
    assert by_triton.bandwidth / by_trtllm.bandwidth == pytest.approx((132 - 27) / (214 - 34), rel=0.2)


def test_a_kernel_that_is_asked_for_is_taken_whatever_the_release_would_choose() -> None:
    fitted, asked = _experts("minimax-m2.5", "b200", "0.5.14", "flashinfer_trtllm")
    assert asked == fitted
    by_trtllm, by_triton = _experts("deepseek-r1", "b200", "0.5.14", "triton")
    assert by_triton.layer_seconds > by_trtllm.layer_seconds


@pytest.mark.parametrize(("model", "more_us"), [("deepseek-r1", 12.6), ("qwen3-235b-a22b", 3.4)])
def test_launches_around_triton_were_more_before_0_5_14(model: str, more_us: float) -> None:
    """53 us of one token of DeepSeek-R1 over eight ranks in 0.5.10 and 37 in 0.5.14; three copies are 6.6."""
    fitted, newest = _experts(model, "h200", "0.5.14")
    older = _experts(model, "h200", "0.5.10")[1]
    assert newest == fitted
    assert 1e6 * (older.layer_seconds - fitted.layer_seconds) == pytest.approx(more_us)
    assert older.flops < fitted.flops and older.bandwidth < fitted.bandwidth


def test_whole_steps_that_were_measured_have_these_launches() -> None:
    fitted, found = _experts("deepseek-r1", "h200", "0.4.5")
    assert found == fitted


def test_an_a100s_table_is_of_the_older_launches_itself() -> None:
    fitted, found = _experts("qwen3-30b-a3b", "a100-80gb-sxm", "0.5.6")
    assert found == fitted
