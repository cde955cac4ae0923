"""Layers whose kernels differ from the tables': older releases, routing, weights that are widened or in blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.engine_speed import engine_speed_model
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.kernels.block_kernels import older_blocks
from kvplan.estimate.speed.steps.kernels.release_kernels import of_release
from kvplan.estimate.speed.steps.kernels.routing_kernels import with_routing
from kvplan.estimate.speed.steps.kernels.widened_weights import with_widened_weights
from kvplan.estimate.speed.steps.rank_step import ExpertSpeed, KernelSpeed, LatentSpeed, LinkSpeed, RankStep
from kvplan.estimate.speed.steps.step_terms import StepLoad
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.estimate.speed.steps.work import ModelWork, kv_read_bytes, model_work
from kvplan.estimate.weights import named_format

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


ALL_REDUCE = 6e-6


def _more_us(engine: str, model: str, ranks: int = 4, *, is_fit: bool = True) -> float:
    name, _, version = engine.partition("@")
    base = Speed(0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0)
    speed = KernelSpeed(base, ExpertSpeed(1e-5, 4e12, 8e14), links=LinkSpeed({2: ALL_REDUCE}, 0.5))
    device = DeviceSpeed(speed, "kernels", "bfloat16", "note", {}, name, version if is_fit else None)
    work = model_work(resolve_model(model), 10**10, "bfloat16", ParallelLayout(ranks))
    found = with_routing(device, work, EngineChoice(name, version)).speed.experts
    assert found is not None
    return 1e6 * (found.layer_seconds - 1e-5)


@pytest.mark.parametrize(
    ("engine", "more_us"),
    [("sglang@0.5.6", 5.3 + 8.0), ("sglang@0.5.14", 5.3), ("vllm@0.11.0", 5.8), ("vllm@0.32.0", 5.8)],
)
def test_glm_4_routes_by_more_kernels_than_the_tables(engine: str, more_us: float) -> None:
    assert _more_us(engine, "glm-4.5") == pytest.approx(more_us)
    assert _more_us(engine, "qwen3-235b-a22b") == 0.0
    assert _more_us(engine, "glm-4.5", is_fit=False) == 0.0


@pytest.mark.parametrize(
    ("engine", "routing_us", "norm_us", "reduces"),
    [
        ("sglang@0.5.6", 13.3, 9.2, 2),
        ("sglang@0.5.7", 8.0, 9.2, 2),
        ("sglang@0.5.8", 8.0, 4.8, 1),
        ("sglang@0.5.10", 8.0, 0.0, 1),
        ("vllm@0.13.0", 5.8, 9.2, 2),
        ("vllm@0.14.0", 5.8, 4.8, 1),
        ("vllm@0.19.0", 0.0, 4.8, 1),
    ],
)
def test_minimax_m2_normalizes_over_all_ranks(engine: str, routing_us: float, norm_us: float, reduces: int) -> None:
    assert _more_us(engine, "minimax-m2.5", ranks=1) == pytest.approx(routing_us)
    over_ranks = routing_us + norm_us + reduces * 1e6 * ALL_REDUCE
    assert _more_us(engine, "minimax-m2.5") == pytest.approx(over_ranks)


def test_one_kernel_in_place_of_three_brings_what_was_measured() -> None:
    """150 tokens a second and 157 with four ranks and 62 layers."""
    before, after = (_more_us(f"sglang@{version}", "minimax-m2.5") for version in ("0.5.9", "0.5.10"))
    assert 62e-6 * (before - after) == pytest.approx(1 / 150 - 1 / 157, rel=0.02)


FAST = Speed(0.0, 0.0, 0.0, 1e12, 2.5e14, 1e12, 1e14)
SLOW_EXPERTS = ExpertSpeed(1e-5, 1e12, 1e14)


def _with_slow_experts(**changes: object) -> DeviceSpeed:
    speed = DeviceSpeed(KernelSpeed(FAST, SLOW_EXPERTS), "kernels", "bfloat16", "note", {}, "vllm", "0.24.0")
    return replace(speed, **changes)


def _widened_work(format_name: str) -> ModelWork:
    spec = replace(resolve_model("llama-3.1-8b"), quantization=named_format(format_name))
    return model_work(spec, 10**10, "bfloat16", ParallelLayout(1))


@pytest.mark.parametrize("format_name", ["fp8", "awq", "gptq", "int4", "nvfp4"])
@pytest.mark.parametrize(("gpu", "most"), [("a100-80gb-sxm", 141e12), ("a30", 141e12 * 165 / 312)])
def test_products_are_as_fast_as_marlin_and_what_is_slower_stays(format_name: str, gpu: str, most: float) -> None:
    found = with_widened_weights(_with_slow_experts(), _widened_work(format_name), find_gpu(gpu), "vllm").speed
    assert found.base.flops == pytest.approx(most, rel=0.01)
    assert found.experts is not None
    assert found.experts.flops == pytest.approx(min(SLOW_EXPERTS.flops, most), rel=0.01)
    assert (found.base.bandwidth, found.base.attention_flops) == (FAST.bandwidth, FAST.attention_flops)


@pytest.mark.parametrize(
    ("speed", "format_name", "gpu", "engine"),
    [
        (_with_slow_experts(), "none", "a100-80gb-sxm", "vllm"),
        (_with_slow_experts(), "int8", "a100-80gb-sxm", "vllm"),
        (_with_slow_experts(), "awq", "a100-80gb-sxm", "trtllm"),
        (_with_slow_experts(), "awq", "h100-sxm", "vllm"),
        (_with_slow_experts(), "fp8", "l40s", "vllm"),
        (_with_slow_experts(origin="calibrated"), "awq", "a100-80gb-sxm", "vllm"),
    ],
    ids=["16 bits", "8-bit activations", "another engine", "Hopper", "Ada", "measured on the device"],
)
def test_others_are_left_as_they_are(speed: DeviceSpeed, format_name: str, gpu: str, engine: str) -> None:
    assert with_widened_weights(speed, _widened_work(format_name), find_gpu(gpu), engine) is speed


FLOPS, LAYER_SECONDS = 1e15, 1e-4
WEIGHT_BYTES = 85 * 10**9


def _of_blocks(engine: str = "vllm", dtype: str = "fp8-block", version: str | None = "0.24.0") -> DeviceSpeed:
    base = Speed(0.0, 0.0, 0.0, 1.0, FLOPS, 1.0, 1.0)
    speed = KernelSpeed(base, latent=LatentSpeed(LAYER_SECONDS, 1.0, 1.0))
    return DeviceSpeed(speed, "kernels", dtype, "tables", {}, engine, version)


def _deepseek_work(name: str = "deepseek-r1") -> ModelWork:
    return model_work(resolve_model(name), WEIGHT_BYTES, "bfloat16", ParallelLayout(8))


@pytest.mark.parametrize(
    ("engine", "version", "reached", "more"),
    [
        ("vllm", "0.7.4", 0.70, 0.127e-3),
        ("vllm", "0.8.5", 0.70, 0.127e-3),
        ("vllm", "0.10.0", 0.70, 0.0),
        ("vllm", "0.11.0", 1.0, 0.0),
        ("vllm", "latest", 1.0, 0.0),
        ("sglang", "0.4.3.post2", 0.51, 0.261e-3),
        ("sglang", "0.4.5.post3", 1.0, 0.136e-3),
        ("sglang", "0.4.6", 1.0, 0.0),
    ],
)
def test_older_releases_multiply_slower_and_take_longer_for_a_layer(
    engine: str, version: str, reached: float, more: float
) -> None:
    found = older_blocks(_of_blocks(engine), _deepseek_work(), EngineChoice(engine, version)).speed
    assert found.latent is not None
    assert found.base.flops == pytest.approx(reached * FLOPS)
    assert found.latent.layer_seconds == pytest.approx(LAYER_SECONDS + more)


def test_a_release_that_nobody_measured_says_so() -> None:
    assert older_blocks(_of_blocks(), _deepseek_work(), EngineChoice("vllm", "0.8.4")).note == "tables"
    note = older_blocks(_of_blocks(), _deepseek_work(), EngineChoice("vllm", "0.9.1")).note
    assert note == "tables; nobody measured the slower kernels that latent attention had in vllm 0.9.1"
    assert "0.4.8" in older_blocks(_of_blocks("sglang"), _deepseek_work(), EngineChoice("sglang", "0.4.8")).short_note


@pytest.mark.parametrize(
    ("speed", "model", "engine"),
    [
        (_of_blocks(), "deepseek-r1", "sglang"),
        (_of_blocks(dtype="fp8"), "deepseek-r1", "vllm"),
        (_of_blocks(version=None), "deepseek-r1", "vllm"),
        (_of_blocks(), "llama-3.1-8b", "vllm"),
    ],
    ids=["another engine's tables", "no blocks", "measured by the user", "a model without blocks"],
)
def test_what_the_tables_say_of_other_formats(speed: DeviceSpeed, model: str, engine: str) -> None:
    assert (
        older_blocks(speed, _deepseek_work(model), EngineChoice(engine, "0.4.3" if engine == "sglang" else "0.8.4"))
        is speed
    )


@pytest.mark.parametrize(
    ("engine", "version", "sequences", "context", "measured_ms"),
    [
        ("sglang", "0.4.3", 1, 256, 25.6),
        ("sglang", "0.4.5", 50, 2000, 35.4),
        ("sglang", "0.4.5", 50, 10250, 45.4),
        ("vllm", "0.8.4", 50, 2000, 45.6),
        ("vllm", "0.8.4", 50, 10250, 51.1),
        ("vllm", "0.8.4", 200, 2000, 63.3),
    ],
)
def test_steps_that_others_measured(
    engine: str, version: str, sequences: int, context: int, measured_ms: float
) -> None:
    """One constant for a release meets them all (block_kernels.py has the sources)."""
    spec, gpu, work = resolve_model("deepseek-r1"), find_gpu("h200"), _deepseek_work()
    profile = load_measured(None).for_gpu(gpu, work.speed_format, engine)
    assert profile is not None
    speed = DeviceSpeed.of(profile, spec.id, work.speed_format)
    kv_bytes = kv_read_bytes(spec, context, CacheSettings(model_dtype="bfloat16", tensor_parallel_size=8))
    model = engine_speed_model(EngineChoice(engine, version), work, gpu, context, 0, kv_bytes, speed)
    step = model.step_seconds(StepLoad.decoding(sequences, context))
    assert 1e3 * step == pytest.approx(measured_ms, rel=0.06)


def test_tritons_attention_counts_in_steps_with_prompts_alone() -> None:
    latent = older_blocks(_of_blocks("sglang"), _deepseek_work(), EngineChoice("sglang", "0.4.3")).speed.latent
    assert latent is not None
    assert [latent.flops_of(_step(reads_prompts=each)) for each in (False, True)] == pytest.approx([1.0, 0.06])
    newer = older_blocks(_of_blocks("sglang"), _deepseek_work(), EngineChoice("sglang", "0.4.5")).speed.latent
    assert newer is not None
    assert newer.flops_of(_step(reads_prompts=True)) == 1.0


def _step(*, reads_prompts: bool) -> RankStep:
    return RankStep(1, 1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, reads_prompts=reads_prompts)
