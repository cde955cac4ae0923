"""What AMD's kernels reach by their own tables: less arithmetic, and more time in layers of experts and latents."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.latency import decode_step_seconds, prefill_seconds
from kvplan.estimate.speed.steps.clocks import BEST, DATA_SHEET, USUAL, Efficiency, Roofline
from kvplan.estimate.speed.steps.kernels.amd_kernels import BEST_OF_AMD, USUAL_OF_AMD
from kvplan.estimate.speed.steps.work import ModelWork, model_work
from kvplan.estimate.weights import size_weights

EIGHT = ParallelLayout(tensor_parallel_size=8)
BOTH = ((BEST, BEST_OF_AMD), (USUAL, USUAL_OF_AMD))


def work_of(model: str, layout: ParallelLayout = EIGHT) -> ModelWork:
    spec = resolve_model(model)
    return model_work(spec, size_weights(spec, "bfloat16").total_bytes // layout.num_gpus, "bfloat16", layout)


@pytest.mark.parametrize("reached", [BEST, USUAL])
def test_layers_of_experts_and_latents_take_longer(reached: Efficiency) -> None:
    """61 latent layers in blocks, 58 of them with experts."""
    work, amd = work_of("deepseek-v3"), reached.amd
    assert amd is not None
    mine = Roofline.of(work, find_gpu("mi300x"), 0.0, reached).step_seconds
    usual = Roofline.of(work, find_gpu("h200"), 0.0, reached).step_seconds
    assert mine - usual == pytest.approx(58 * amd.experts_seconds + 61 * (amd.latents_seconds + 35e-6))


def test_usual_attention_in_blocks_has_two_products() -> None:
    work = work_of("qwen3-235b-a22b-fp8")
    assert BEST_OF_AMD.layer_seconds(work) == pytest.approx(94 * (14e-6 + 21e-6))


def test_dense_layers_are_as_on_other_gpus() -> None:
    work = work_of("llama-3.3-70b")
    assert BEST_OF_AMD.layer_seconds(work) == USUAL_OF_AMD.layer_seconds(work) == 0


@pytest.mark.parametrize(("model", "shares"), [("llama-3.3-70b", (0.53, 0.35)), ("deepseek-v3", (0.37, 0.15))])
def test_arithmetic_reaches_less_of_the_data_sheet(model: str, shares: tuple[float, float]) -> None:
    work, gpu = work_of(model), find_gpu("mi355x")
    found = [Roofline.of(work, gpu, 0.0, reached).flops / gpu.flops(work.compute_dtype) for reached in (BEST, USUAL)]
    assert found == pytest.approx(shares)
    assert Roofline.of(work, gpu, 0.0, DATA_SHEET).flops == gpu.flops(work.compute_dtype)


def test_a_dense_model_alone_takes_what_amd_measured() -> None:
    """Llama 3.1 70B in 8 bits over eight MI300X: 7.45 to 7.75 ms a token with vLLM."""
    spec = resolve_model("nvidia/Llama-3.1-70B-Instruct-FP8")
    work = model_work(spec, size_weights(spec, "bfloat16").total_bytes // 8, "bfloat16", EIGHT)
    found = decode_step_seconds(work, find_gpu("mi300x"), 1, 1152 * 160 * 1024)
    assert 0.9 * 7.45e-3 < (found.low * found.high) ** 0.5 < 1.2 * 7.75e-3


def test_prompts_take_longer_than_by_nvidias_shares() -> None:
    work, gpu = work_of("deepseek-v3"), find_gpu("mi300x")
    plain = prefill_seconds(work, find_gpu("h200"), 8192)
    mine = prefill_seconds(work, gpu, 8192)
    faster = gpu.flops("fp8") / find_gpu("h200").flops("fp8")
    assert mine.low > plain.low / faster
    assert mine.high > plain.high / faster
