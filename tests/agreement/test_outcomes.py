"""Between nothing and a sequence of the longest length planner and engine refuse the same pools for the same reason."""

from __future__ import annotations

import pytest
from engine_account import engine_outcome

from kvplan.catalog.models import resolve_model
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.settings import ServingSettings
from kvplan_engine import EngineConfig

SETTINGS = {
    "dtype": "bfloat16",
    "gpu_memory_utilization": 1.0,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "max_model_len": 400,
    "block_size": 16,
}
PLENTY = 4096 * 1024**3


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mistral-7b-v0.1", "gemma-3-4b", "qwen3.5-9b", "whisper-large-v3"])
def test_a_pool_of_a_few_blocks_has_the_same_outcome_on_both_sides(name: str) -> None:
    spec, settings = resolve_model(name), ServingSettings(**SETTINGS)  # type: ignore[arg-type]
    found = predict(spec, settings, EngineDevice(PLENTY))
    least, longest = found.layout.blocks_for(1), found.layout.blocks_for(400, 64)
    wanted = {0: "oom_kv_init", least - 1: "oom_kv_init", least: "rejected_ctx", longest - 1: "rejected_ctx"}
    for num_blocks, outcome in (wanted | {longest: "ok"}).items():
        device_bytes = found.fixed_bytes + num_blocks * found.block_bytes
        config = EngineConfig(model=name, **SETTINGS)  # type: ignore[arg-type]
        served = engine_outcome(config, "bfloat16", device_bytes)
        planned = predict(spec, settings, EngineDevice(device_bytes))
        assert (planned.outcome, served["outcome"]) == (outcome, outcome), num_blocks
        assert planned.num_blocks == num_blocks
