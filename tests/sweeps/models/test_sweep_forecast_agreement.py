"""The forecast plays the scheduler's rules on lengths alone: the engine itself must take the same steps."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
import torch
from sweep_helpers import TINY_CONFIG

from kvplan.estimate.speed.steps.step_time import Speed, StepShape, StepTimes
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.forecast.prediction import forecast_trial
from kvplan.sweeps.worker.load_generator import LoadGenerator, TimedRequest
from kvplan.workload.requests import RequestSpec, prompt_token_ids
from kvplan_engine import Engine, EngineConfig, SamplingParams

COST = StepTimes(StepShape(0, 0, 0, 0, 0, 0, 0, 0), Speed(1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0))  # a second a step
DEVICE_BYTES = 256 * 1024**2


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a model this small gains nothing from more, and barriers are slow on a busy machine
    yield Engine(
        EngineConfig(
            model=TINY_CONFIG, device="cpu", dtype="float32", load_format="dummy", device_memory=DEVICE_BYTES,
            max_num_seqs=8, max_num_batched_tokens=64, enable_prefix_caching=False,
        )
    )  # fmt: skip
    torch.set_num_threads(threads)


def reconfigure(engine: Engine, settings: TrialSettings, num_blocks: int) -> None:
    """The engine with exactly ``num_blocks`` blocks: found through what it says of its own memory."""
    changes = {
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "block_size": settings.block_size,
        "max_model_len": settings.max_model_len,
    }
    engine.reconfigure(gpu_memory_utilization=0.9, **changes)
    memory = engine.memory
    fixed = memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes
    share = (fixed + (num_blocks + 0.5) * memory.block_bytes) / DEVICE_BYTES
    engine.reconfigure(gpu_memory_utilization=share, **changes)
    assert engine.memory.num_blocks == num_blocks


@pytest.mark.parametrize("seed", range(16))
def test_the_engine_takes_the_steps_of_the_forecast(engine: Engine, seed: int) -> None:
    rng = random.Random(seed)
    settings = TrialSettings(
        gpu_memory_utilization=0.9,
        max_num_seqs=rng.choice([1, 3, 8]),
        block_size=rng.choice([1, 4, 16]),
        max_model_len=64,
        max_num_batched_tokens=rng.choice([8, 24, 64]),
    )
    requests = [RequestSpec(index, rng.randint(1, 48), rng.randint(1, 16)) for index in range(rng.randint(1, 12))]
    needed = math.ceil(64 / settings.block_size)
    num_blocks = rng.randint(needed, 4 * needed + 2)
    reconfigure(engine, settings, num_blocks)
    timed = [
        TimedRequest(
            str(request.index),
            0.0,
            prompt_token_ids(seed, request, TINY_CONFIG["vocab_size"]),
            SamplingParams(temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True),
            request.num_output_tokens,
        )
        for request in requests
    ]
    recording = LoadGenerator(engine, timed, max_concurrency=None).run()
    forecast = forecast_trial(requests, settings, num_blocks=num_blocks, cost=COST)
    assert forecast.num_steps == len(recording.samples)
    assert forecast.num_preemptions == engine.stats.num_preemptions
    assert forecast.max_used_blocks == max(sample.num_used_blocks for sample in recording.samples)
    assert forecast.max_running == max(sample.num_running for sample in recording.samples)
    assert forecast.num_output_tokens == sum(len(trace.token_times) for trace in recording.traces)
    expected = "queued" if engine.stats.num_blocked_admissions else "ok"
    assert forecast.status == ("preempted" if engine.stats.num_preemptions else expected)
