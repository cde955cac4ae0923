"""Layers beside aiconfigurator-core 0.12.0's own sums: gated delta layers, and products with a checkpoint's scales."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.kv_cache import size_sequence
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.engine_speed import engine_speed_model
from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.speed.steps.clocks import IN_A_SERVER, DeviceSpeed
from kvplan.estimate.speed.steps.step_terms import StepLoad
from kvplan.estimate.speed.steps.work import kv_read_bytes, model_work

GIB = 2**30
_CACHE = CacheSettings(state_dtype="float32")


def _model(model: str, engine: str, version: str) -> SpeedModel:
    spec, gpu = resolve_model(model), find_gpu("h200")
    work = model_work(spec, 54 * GIB, "bfloat16", ParallelLayout())
    profile = load_measured(None).for_gpu(gpu, "bfloat16", engine)
    assert profile is not None
    device = DeviceSpeed.of(profile, spec.id, "bfloat16")
    kv_bytes = kv_read_bytes(spec, 1024, _CACHE)
    return engine_speed_model(EngineChoice(engine, version), work, gpu, 1024, 0, kv_bytes, device)


@pytest.mark.parametrize(("engine", "version", "scan"), [("vllm", "0.24.0", 19.4e-3), ("sglang", "0.5.14", 49.1e-3)])
def test_prompts_take_the_scan_that_the_tables_have(engine: str, version: str, scan: float) -> None:
    """8,192 tokens in 48 layers; the tables' own sums are 25.9 and 49.1 ms."""
    model = _model("Qwen/Qwen3.5-27B", engine, version)
    device = model.device_speed
    assert device is not None
    assert 8192 * device.speed.scan_seconds == pytest.approx(scan, rel=0.1)
    prompt, token = StepLoad(8192, 1, 8192, 8192**2 / 2, 8192), StepLoad.decoding(1, 1024)
    assert 0.55 < model.step_seconds(prompt) / IN_A_SERVER < 0.75  # 0.645 and 0.691 s there
    assert model.step_seconds(token) / IN_A_SERVER == pytest.approx(15e-3, rel=0.15)  # 14.9 and 14.8 ms there


def test_a_token_of_many_sequences_reads_and_writes_their_states() -> None:
    """Qwen3.5-27B on an H200 with vLLM 0.24, 64 and 256 sequences of 1,024 tokens: 22.2 and 45.0 ms in the tables."""
    model = _model("Qwen/Qwen3.5-27B", "vllm", "0.24.0")
    found = [model.step_seconds(StepLoad.decoding(number, 1024)) / IN_A_SERVER for number in (64, 256)]
    assert found == pytest.approx([22.2e-3, 45.0e-3], rel=0.06)


def test_states_are_moved_twice() -> None:
    spec = resolve_model("Qwen/Qwen3.5-27B")
    for each in size_sequence(spec, 1024, _CACHE).components:
        assert each.entry.read_bytes(1024) == each.entry.kept_bytes(1024) + each.entry.state_bytes


def test_a_block_of_one_part_is_half_a_layer() -> None:
    """52 blocks of Nemotron 3 Nano have a mixer or experts, and 31 of 80 of a pruned Llama no attention."""
    layout = ParallelLayout()
    nano = model_work(resolve_model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8"), 32 * GIB, "bfloat16", layout)
    pruned = model_work(resolve_model("nvidia/Llama-3_3-Nemotron-Super-49B-v1"), 93 * GIB, "bfloat16", layout)
    assert (nano.num_layers, nano.num_expert_layers, pruned.num_layers) == (26, 23, 64.5)


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
