"""The forecast plays the scheduler's rules over groups of layers: an engine without tensors takes the same steps."""

from __future__ import annotations

import random
from typing import Any

import pytest
from small_configs import small_configs
from step_clocks import EvenClock

from kvplan.catalog.reader import read_config
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.estimate.speed.simulation.batching import simulate_requests
from kvplan.estimate.speed.simulation.interface import BatchLimits
from kvplan.settings import ServingSettings
from kvplan.sweeps.worker.load_generator import LoadGenerator, TimedRequest
from kvplan.workload.requests import RequestSpec, prompt_token_ids
from kvplan_engine import Engine, EngineConfig, SamplingParams

SMALL = small_configs()
MODELS = {
    "full and windows": SMALL["Gemma4ForCausalLM"],
    "windows": SMALL["MinistralForCausalLM"] | {"sliding_window": 20},
    "full and chunks": SMALL["Llama4ForCausalLM"] | {"attention_chunk_size": 20},
    "full and states": SMALL["Qwen3_5ForCausalLM"],
}

KINDS = {
    "full and windows": ["full", "window"],
    "windows": ["window"],
    "full and chunks": ["full", "chunk"],
    "full and states": ["full", "state"],
}


@pytest.mark.parametrize("caches", [False, True], ids=["", "prefix cache"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", range(5))
def test_the_engine_takes_the_steps_of_the_forecast(model: str, caches: bool, seed: int) -> None:
    rng = random.Random(seed)
    settings: dict[str, Any] = {
        "gpu_memory_utilization": 1.0,
        "max_num_seqs": rng.choice([3, 8]),
        "max_num_batched_tokens": rng.choice([24, 64]),
        "max_model_len": 64,
        "block_size": rng.choice([1, 4, 16]),
        "dtype": "bfloat16",
    }
    spec = read_config(MODELS[model], model_id="model")
    plenty = predict(spec, ServingSettings(**settings), EngineDevice(1 << 34))
    assert [group.kept.kind for group in plenty.layout.groups] == KINDS[model]
    needed = plenty.layout.blocks_for(64, settings["max_num_batched_tokens"])
    # where prefixes are kept, nobody is preempted: what a sequence finds again when it returns is not forecast
    num_blocks = 12 * plenty.layout.blocks_for(64, 64) if caches else rng.randint(needed, 4 * needed)
    device_bytes = plenty.fixed_bytes + num_blocks * plenty.block_bytes
    engine = Engine(
        EngineConfig(
            model=MODELS[model], device="cpu", device_memory=device_bytes, load_format="none",
            enable_prefix_caching=caches, **settings,
        )
    )  # fmt: skip
    assert engine.memory.num_blocks == num_blocks
    requests = [RequestSpec(index, rng.randint(1, 48), rng.randint(1, 16)) for index in range(rng.randint(4, 12))]
    recording = LoadGenerator(
        engine, [_timed(request, seed, spec.vocab_size) for request in requests], max_concurrency=None
    ).run()
    limits = BatchLimits(
        settings["max_num_seqs"], settings["max_num_batched_tokens"], settings["block_size"], num_blocks,
        plenty.layout.groups, caches_prefixes=caches,
    )  # fmt: skip
    forecast = simulate_requests(requests, limits, EvenClock())
    assert forecast.loads.num_sampled == [sample.num_new_tokens for sample in recording.samples]
    assert forecast.num_preemptions == engine.stats.num_preemptions
    assert forecast.was_blocked == bool(engine.stats.num_blocked_admissions)
    assert forecast.max_running == max(sample.num_running for sample in recording.samples)
    assert forecast.max_used_blocks == max(sample.num_used_blocks for sample in recording.samples)


def _timed(request: RequestSpec, seed: int, vocab_size: int) -> TimedRequest:
    parameters = SamplingParams(temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True)
    tokens = prompt_token_ids(seed, request, vocab_size)
    return TimedRequest(str(request.index), 0.0, tokens, parameters, request.num_output_tokens)
