"""No figure beats its data sheet, as computed here from the model's parameters and the GPU's profile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from kvplan.catalog.devices.gpus import GpuProfile, find_gpu, load_gpus
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.errors import KvplanError
from kvplan.estimate.answer import EstimateRequest, make_estimate
from kvplan.estimate.speed.device_speed import ANSWER_TOKENS, PROMPT_TOKENS, DeploymentSpeed
from kvplan.estimate.speed.queues import queues_document
from kvplan.settings import ServingSettings

GPUS = tuple(gpu for gpu in load_gpus() if not gpu.is_cpu)
ROUNDING_MS = 0.005
CASES: tuple[tuple[str, dict[str, object], float, float], ...] = (
    # model, settings, bytes that a rank reads for one token at least, operations of a prompt's token on a rank
    ("llama-3.1-8b", {}, 15.0e9, 2 * 6.98e9),
    ("llama-3.1-8b", {"quantization": "awq"}, 4.5e9, 2 * 6.98e9),
    ("llama-3.1-8b", {"quantization": "fp8"}, 8.0e9, 2 * 6.98e9),
    ("llama-3.1-8b", {"tensor_parallel_size": 4, "kv_cache_dtype": "fp8"}, 15.0e9 / 4, 2 * 6.98e9 / 4),
    ("llama-3.3-70b", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, 139.0e9 / 4, 2 * 68.5e9 / 8),
    ("qwen3-30b-a3b", {}, 5.9e9, 2 * 2.7e9),
    ("qwen3.5-27b", {"max_num_seqs": 64}, 51.0e9, 2 * 24.3e9),
    ("deepseek-v2-lite", {}, 4.4e9, 2 * 2.2e9),
)
"""Weights without the embedding (of experts those that one token meets, and a little less than all of the rest)."""


def speeds() -> Iterator[tuple[GpuProfile, DeploymentSpeed, float, float]]:
    """The first case on every GPU, each of the others on every third."""
    measured = load_measured()
    for index, (model, changes, read_bytes, operations) in enumerate(CASES):
        spec = resolve_model(model)
        for gpu in GPUS if index == 0 else GPUS[index % 3 :: 3]:
            settings = ServingSettings(**changes)  # type: ignore[arg-type]
            try:
                request = EstimateRequest(2048, (gpu,), EngineChoice("vllm", "0.33"), settings)
                found = make_estimate(spec, request, measured).speeds[0]
            except KvplanError:
                continue
            if found is not None:
                yield gpu, found, read_bytes, operations


def test_no_interval_reaches_below_what_must_be_read_and_computed() -> None:
    """For one user everywhere; for as many as fit, whose play takes longer, on some."""
    count = 0
    for gpu, speed, read_bytes, operations in speeds():
        count += 1
        tpot = read_bytes / gpu.memory_bandwidth_bytes_per_second
        ttft = max(PROMPT_TOKENS * operations / gpu.flops(speed.model.work.compute_dtype), tpot)
        assert speed.alone.ttft_seconds.low >= ttft, gpu.id
        assert speed.alone.tpot_seconds.low >= tpot, gpu.id
        for users in {1, speed.num_users} if count % 10 == 0 else {1}:
            played = queues_document(speed.queues(users))
            if played is None:
                continue
            for name, least in (("ttft", 1000 * ttft), ("tpot", 1000 * tpot)):
                low, middle, high = played[f"{name}_p50_ms"]
                assert least - ROUNDING_MS <= low <= middle <= high, (gpu.id, name, users)
            most = users * ANSWER_TOKENS / (ttft + (ANSWER_TOKENS - 1) * tpot)
            low, middle, high = played["output_throughput"]
            assert low <= middle <= high <= most + 0.01, (gpu.id, users)
    assert count > 80


def test_the_bound_grows_with_the_cache_of_those_who_decode() -> None:
    model = next(speeds())[1].model
    one, many = model.bounds(1), model.bounds(64)
    read = 64 * model.kv_bytes / model.gpu.memory_bandwidth_bytes_per_second
    assert many.tpot_seconds < one.tpot_seconds + read
    assert many.tpot_seconds > one.tpot_seconds + 0.7 * read
    assert many.ttft_seconds == one.ttft_seconds


NUMBERS = r"([\d.,]+)(?: \(([\d.,]+)-([\d.,]+)\))?"


def ends(line: str) -> list[tuple[float, float, float]]:
    """(low, middle, high) of each figure in a row of the speeds, without its number at once."""
    found = []
    for cells in re.findall(NUMBERS, line.split(maxsplit=1)[1])[:-1]:
        middle, low, high = (float(each.replace(",", "")) if each else None for each in cells)
        assert middle is not None
        found.append((middle if low is None else low, middle, middle if high is None else high))
    return found


@pytest.mark.parametrize(
    ("gpu", "least_ms"), [("rtx-4090", 14.88), ("rtx-5090", 8.37), ("l4", 50.0), ("h20", 3.75), ("l40s", 17.36)]
)
def test_what_is_printed_for_one_user_agrees_with_itself(
    gpu: str, least_ms: float, printed_by: Callable[..., str]
) -> None:
    """Llama 3.1 8B reads 15.0 GB for each token. The interval of tokens/s is that of the times, not narrower."""
    assert find_gpu(gpu).memory_bandwidth_bytes_per_second * least_ms / 1000 == pytest.approx(15.0e9, rel=2e-3)
    rows = printed_by(f"estimate llama-3.1-8b --gpu {gpu} --ctx 4k").partition("Speeds of")[2].splitlines()
    ttft, tpot, tokens = ends(next(each for each in rows if re.search(rf" {gpu} .* 1$", each)))
    assert tpot[0] >= least_ms
    for end, other in ((0, 2), (2, 0)):
        whole = ttft[other] + (ANSWER_TOKENS - 1) * tpot[other]
        assert tokens[end] == pytest.approx(1000 * ANSWER_TOKENS / whole, rel=0.08)
