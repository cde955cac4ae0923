"""Arithmetic below the data sheet: tiles that are multiplied whole, and AMD's kernels by their own tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.latency import decode_step_seconds, prefill_seconds
from kvplan.estimate.speed.steps.clocks import BEST, DATA_SHEET, USUAL, DeviceSpeed, Efficiency, Roofline
from kvplan.estimate.speed.steps.kernels.amd_kernels import BEST_OF_AMD, USUAL_OF_AMD
from kvplan.estimate.speed.steps.kernels.tile_rows import with_tiles
from kvplan.estimate.speed.steps.measured_clock import MeasuredClock
from kvplan.estimate.speed.steps.rank_step import ExpertSpeed, KernelSpeed, whole_tiles
from kvplan.estimate.speed.steps.step_terms import StepLoad, measured_terms
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.estimate.speed.steps.work import ModelWork, model_work
from kvplan.estimate.weights import named_format, size_weights

FEW = Speed(0.0, 0.0, 0.0, 3.5e12, 1.26e14, 3.5e12, 1.26e14, 2.0)
OLD = EngineChoice("vllm", "0.8.5")


def _speed(**changes: object) -> DeviceSpeed:
    kernels = KernelSpeed(FEW, ExpertSpeed(0.0, 3.5e12, 1.26e14))
    return replace(DeviceSpeed(kernels, "scaled", "bfloat16", "note", {}, "vllm", "0.24.0"), **changes)


def _work(name: str = "llama-3.1-8b", format_name: str = "none") -> ModelWork:
    spec = replace(resolve_model(name), quantization=named_format(format_name))
    return model_work(spec, 16 * 10**9, "bfloat16", ParallelLayout(1))


@pytest.mark.parametrize(
    ("engine", "format_name", "tile_rows"),
    [
        (OLD, "none", 64),
        (EngineChoice("vllm", "0.9.0"), "none", 1),
        (EngineChoice("sglang", "0.4.6.post1"), "none", 64),
        (EngineChoice("sglang", "0.4.7"), "none", 1),
        (EngineChoice("sglang", "latest"), "none", 1),
        (EngineChoice("vllm", "0.24.0"), "fp8", 64),
        (OLD, "awq", 1),
    ],
    ids=["vLLM", "newer vLLM", "SGLang", "newer SGLang", "newest SGLang", "8 bits", "widened weights"],
)
def test_rows_of_a_tile_are_those_of_the_kernels(engine: EngineChoice, format_name: str, tile_rows: int) -> None:
    found = with_tiles(_speed(), _work(format_name=format_name), find_gpu("h20"), engine).speed
    assert found.all_tile_rows(1, 0) == (tile_rows, 16)


@pytest.mark.parametrize(
    ("speed", "gpu", "engine"),
    [
        (_speed(), "h100-pcie", OLD),
        (_speed(), "a100-40gb-sxm", OLD),
        (_speed(), "rtx-4090", OLD),
        (_speed(), "h20", EngineChoice("trtllm", "1.0.0")),
        (_speed(origin="kernels"), "h20", OLD),
        (_speed(origin="calibrated"), "h20", OLD),
    ],
    ids=["Hopper", "Ampere", "Ada", "unknown kernels", "tables of its own", "measured on the device"],
)
def test_others_are_left_as_they_are(speed: DeviceSpeed, gpu: str, engine: EngineChoice) -> None:
    assert with_tiles(speed, _work(), find_gpu(gpu), engine) is speed


def _seconds(speed: DeviceSpeed, num_sequences: int) -> float:
    clock = MeasuredClock(_work(), find_gpu("h20"), 1e6, speed, 100.0)
    return clock.seconds(num_sequences, num_sequences, num_sequences, 100 * num_sequences, 100.0 * num_sequences)


def test_a_few_sequences_take_as_long_as_a_tile_of_them() -> None:
    plain = _speed()
    tiled = with_tiles(plain, _work(), find_gpu("h20"), OLD)
    assert _seconds(tiled, 1) > 1.5 * _seconds(plain, 1)
    assert _seconds(tiled, 48) - _seconds(tiled, 1) < 0.02 * _seconds(tiled, 1)
    assert _seconds(tiled, 64) == pytest.approx(_seconds(plain, 64))
    assert _seconds(tiled, 65) > 1.4 * _seconds(tiled, 64)


def test_a_picture_of_a_step_has_whole_tiles_too() -> None:
    plain = _speed()
    tiled = with_tiles(plain, _work(), find_gpu("h20"), OLD)
    load = StepLoad.decoding(1, 100)
    few, whole = (
        measured_terms(MeasuredClock(_work(), find_gpu("h20"), 1e6, speed, 100.0), load).products
        for speed in (plain, tiled)
    )
    assert whole == pytest.approx(64 * few)


@pytest.mark.parametrize(("rows", "whole"), [(0, 0), (1, 64), (64, 64), (64 * (1 + 1e-12), 64), (65, 128)])
def test_rows_are_rounded_up_to_tiles_but_not_by_an_error_of_arithmetic(rows: float, whole: int) -> None:
    assert whole_tiles(rows, 64) == whole
    assert whole_tiles(rows, 1) == rows


def test_an_expert_multiplies_a_tile_at_least() -> None:
    work = _work("mixtral-8x7b")
    assert work.tiled_expert_tokens(8, 1) == 8
    touched = 8 * work.touched_experts(8)
    assert work.tiled_expert_tokens(8, 16) == pytest.approx(touched * 16 / 2)
    # Of many rows the last tile is half full: 1,024 for each of 8 experts, and 8 more.
    assert work.tiled_expert_tokens(4096, 16) == pytest.approx(4096 * (1024 + 8) / 1024)
    assert _work().tiled_expert_tokens(8, 16) == 8


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


def test_experts_and_attention_of_prompts_reach_less_than_products() -> None:
    """By the tables of AITER's fused experts; attention multiplies in 16 bits beside products in 8."""
    work, gpu = work_of("deepseek-v3"), find_gpu("mi300x")
    roofline = Roofline.of(work, gpu, 0.0, USUAL)
    assert roofline.expert_flops == pytest.approx(0.09 * gpu.flops("fp8"))
    assert roofline.attention_flops == pytest.approx(0.16 * gpu.flops("bfloat16"))
    in_experts = work.expert_operations(8192) / roofline.expert_flops
    others = (work.operations(8192, 8192) - work.expert_operations(8192)) / roofline.flops
    assert roofline.product_seconds(8192, 8192) == pytest.approx(in_experts + others)


def test_a_prompt_moves_its_activations_between_products() -> None:
    """On any GPU without tables; AMD's fused experts have the vectors routed to them in their own time."""
    work = work_of("deepseek-v3")
    routed = Roofline.of(work, find_gpu("gb10"), 0.0, BEST).moved_bytes
    assert routed == pytest.approx(work.rank_activation_bytes() + work.routed_bytes())
    assert Roofline.of(work, find_gpu("mi300x"), 0.0, BEST).moved_bytes == work.rank_activation_bytes()
    dense = Roofline.of(work_of("llama-3.3-70b"), find_gpu("gb10"), 0.0, BEST)
    assert dense.moving_seconds(8192) == pytest.approx(8192 * dense.moved_bytes / dense.bandwidth)


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
