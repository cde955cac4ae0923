"""Dense products whose activations' scales are in the checkpoint, beside aiconfigurator-core 0.12.0's own sums."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.estimate.kv_cache import CacheSettings
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.engine_speed import engine_speed_model
from kvplan.estimate.speed.steps.clocks import IN_A_SERVER, DeviceSpeed
from kvplan.estimate.speed.steps.step_terms import StepLoad
from kvplan.estimate.speed.steps.work import kv_read_bytes, model_work


@pytest.mark.parametrize(
    ("engine", "version", "gpu", "ranks", "dynamic", "static"),
    [
        ("trtllm", "1.3.0", "h200", 1, 23.5e-3, 20.9e-3),
        ("trtllm", "1.3.0", "h200", 8, 8.6e-3, 6.0e-3),
        ("trtllm", "1.3.0", "b200", 1, 18.4e-3, 15.4e-3),
        ("trtllm", "1.3.0", "b200", 8, 8.8e-3, 5.8e-3),
        ("vllm", "0.24.0", "h200", 8, 7.3e-3, 6.7e-3),
    ],
)
def test_a_token_of_four_sequences(
    engine: str, version: str, gpu: str, ranks: int, dynamic: float, static: float
) -> None:
    """Of 1,024 tokens each, to Llama 3.3 70B; NVIDIA's checkpoint has its scales."""
    spec, device = resolve_model("nvidia/Llama-3.3-70B-Instruct-FP8"), find_gpu(gpu)
    layout = ParallelLayout(tensor_parallel_size=ranks)
    work = model_work(spec, 70 * 10**9 // ranks, "bfloat16", layout)
    assert work.has_static_scales
    cache = CacheSettings(tensor_parallel_size=ranks, kv_dtype="fp8")
    profile = load_measured(None).for_gpu(device, "fp8", engine)
    assert profile is not None
    speed = DeviceSpeed.of(profile, spec.id, "fp8")
    for is_static, expected in ((False, dynamic), (True, static)):
        of = replace(work, has_static_scales=is_static)
        kv_bytes = kv_read_bytes(spec, 1024, cache)
        model = engine_speed_model(EngineChoice(engine, version), of, device, 1024, 0, kv_bytes, speed)
        assert model.step_seconds(StepLoad.decoding(4, 1024)) / IN_A_SERVER == pytest.approx(expected, rel=0.1)
