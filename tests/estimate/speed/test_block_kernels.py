"""8-bit floats in blocks and latent attention, in releases older than the tables' kernels."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.estimate.kv_cache import CacheSettings
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.engine_speed import engine_speed_model
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.kernels.block_kernels import older_blocks
from kvplan.estimate.speed.steps.rank_step import KernelSpeed, LatentSpeed, RankStep
from kvplan.estimate.speed.steps.step_terms import StepLoad
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.estimate.speed.steps.work import ModelWork, kv_read_bytes, model_work

FLOPS, LAYER = 1e15, 1e-4
WEIGHT_BYTES = 85 * 10**9


def _speed(engine: str = "vllm", dtype: str = "fp8-block", version: str | None = "0.24.0") -> DeviceSpeed:
    base = Speed(0.0, 0.0, 0.0, 1.0, FLOPS, 1.0, 1.0)
    speed = KernelSpeed(base, latent=LatentSpeed(LAYER, 1.0, 1.0))
    return DeviceSpeed(speed, "kernels", dtype, "tables", {}, engine, version)


def _work(name: str = "deepseek-r1") -> ModelWork:
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
    found = older_blocks(_speed(engine), _work(), EngineChoice(engine, version)).speed
    assert found.latent is not None
    assert found.base.flops == pytest.approx(reached * FLOPS)
    assert found.latent.layer_seconds == pytest.approx(LAYER + more)


def test_a_release_that_nobody_measured_says_so() -> None:
    assert older_blocks(_speed(), _work(), EngineChoice("vllm", "0.8.4")).note == "tables"
    note = older_blocks(_speed(), _work(), EngineChoice("vllm", "0.9.1")).note
    assert note == "tables; nobody measured the slower kernels that latent attention had in vllm 0.9.1"
    assert "0.4.8" in older_blocks(_speed("sglang"), _work(), EngineChoice("sglang", "0.4.8")).short_note


@pytest.mark.parametrize(
    ("speed", "model", "engine"),
    [
        (_speed(), "deepseek-r1", "sglang"),
        (_speed(dtype="fp8"), "deepseek-r1", "vllm"),
        (_speed(version=None), "deepseek-r1", "vllm"),
        (_speed(), "llama-3.1-8b", "vllm"),
    ],
    ids=["another engine's tables", "no blocks", "measured by the user", "a model without blocks"],
)
def test_what_the_tables_say_of_all_others(speed: DeviceSpeed, model: str, engine: str) -> None:
    assert older_blocks(speed, _work(model), EngineChoice(engine, "0.4.3" if engine == "sglang" else "0.8.4")) is speed


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
    spec, gpu, work = resolve_model("deepseek-r1"), find_gpu("h200"), _work()
    profile = load_measured(None).for_gpu(gpu, work.speed_format, engine)
    assert profile is not None
    speed = DeviceSpeed.of(profile, spec.id, work.speed_format)
    kv_bytes = kv_read_bytes(spec, context, CacheSettings(model_dtype="bfloat16", tensor_parallel_size=8))
    model = engine_speed_model(EngineChoice(engine, version), work, gpu, context, 0, kv_bytes, speed)
    step = model.step_seconds(StepLoad.decoding(sequences, context))
    assert 1e3 * step == pytest.approx(measured_ms, rel=0.06)


def test_tritons_attention_counts_in_steps_with_prompts_alone() -> None:
    latent = older_blocks(_speed("sglang"), _work(), EngineChoice("sglang", "0.4.3")).speed.latent
    assert latent is not None
    assert [latent.flops_of(_step(reads_prompts=each)) for each in (False, True)] == pytest.approx([1.0, 0.06])
    newer = older_blocks(_speed("sglang"), _work(), EngineChoice("sglang", "0.4.5")).speed.latent
    assert newer is not None
    assert newer.flops_of(_step(reads_prompts=True)) == 1.0


def _step(*, reads_prompts: bool) -> RankStep:
    return RankStep(1, 1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, reads_prompts=reads_prompts)
