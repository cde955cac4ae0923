"""The planner's plays take the engine's steps, and blocks of small models are as predicted and come back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from small_configs import small_configs
from step_clocks import EvenClock

from fleet_checks.beside import compared
from fleet_checks.own_engine import as_own_engine, engine_cases, run_engine
from fleet_checks.playing import played
from fleet_checks.trace import longest, shortened
from kvplan.catalog.reader import read_config
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.estimate.speed.simulation.batching import simulate_requests
from kvplan.estimate.speed.simulation.interface import BatchLimits
from kvplan.settings import ServingSettings
from kvplan.sweeps.worker.load_generator import LoadGenerator, TimedRequest
from kvplan.workload.requests import RequestSpec, prompt_token_ids
from kvplan_engine import LLM, Engine, EngineConfig, SamplingParams

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


DEVICE_BYTES = 256 * 1024**2
SETTINGS: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 128,
    "block_size": 8,
    "dtype": "bfloat16",
}


@pytest.mark.parametrize("architecture", SMALL)
def test_blocks_are_as_predicted_and_come_back(architecture: str) -> None:
    config = SMALL[architecture]
    llm = LLM(config, load_format="none", device="cpu", device_memory=DEVICE_BYTES, **SETTINGS)
    predicted = predict(read_config(config, model_id="model"), ServingSettings(**SETTINGS), EngineDevice(DEVICE_BYTES))
    memory = llm.engine.memory
    assert memory.block_bytes == predicted.block_bytes
    assert memory.num_blocks == predicted.num_blocks
    prompts = [{"prompt_token_ids": list(range(1, length))} for length in (40, 70, 20, 9, 33)]
    answers = llm.generate(prompts, SamplingParams(max_tokens=20, ignore_eos=True))
    assert [len(answer.outputs[0].token_ids) for answer in answers] == [20] * len(prompts)
    stats = llm.get_stats()
    assert stats["num_free_blocks"] == stats["num_blocks"]


EXCERPT = Path(__file__).parents[1] / "data" / "mooncake_conversation_100.jsonl"
REQUESTS = shortened(EXCERPT, 60, 16, 16.0)
CASES = list(engine_cases(longest(REQUESTS)))


@pytest.mark.parametrize(("name", "config"), CASES, ids=lambda value: str(value)[:20])
def test_hits_steps_and_preemptions_are_the_engines(name: str, config: object) -> None:
    from kvplan_engine.config import EngineConfig

    assert isinstance(config, EngineConfig)
    record, layout = run_engine(REQUESTS, config)
    play = played(REQUESTS, layout, config.max_num_seqs, config.max_num_batched_tokens, as_own_engine)
    found = compared(play, record)
    assert found.is_equal, found
    assert found.num_requests == 60 and found.hit_tokens > 0
