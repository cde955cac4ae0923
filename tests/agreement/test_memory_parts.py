"""Planner and engine agree on weights in few bits, on the slots of adapters, and on pools of a few blocks."""

from __future__ import annotations

import json

import pytest
from engine_account import engine_outcome

from kvplan.catalog.models import profile_names, profiles, resolve_model
from kvplan.estimate.adapters import engine_slot_bytes
from kvplan.estimate.kvplan.held_weights import held_weight_bytes
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.paths import profiles_dir
from kvplan.settings import ServingSettings
from kvplan_engine import EngineConfig, EngineError
from kvplan_engine.adapters.sites import slot_bytes
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.checkpoints.quantised.held import rounded_weight_bytes
from kvplan_engine.description.weight_format import recipe_of


@pytest.mark.parametrize("quantization", ["gptq", "mxfp4"])
def test_every_model_that_is_published_dense(quantization: str) -> None:
    """GPTQ with an order of the inputs and minimums beside the scales, MXFP4 with scales of a byte."""
    num_models = 0
    for name in profile_names():
        spec = resolve_model(name)
        config = json.loads((profiles_dir() / "models" / f"{name}.json").read_text(encoding="utf-8"))["config"]
        if spec.quantization is not None:
            continue
        try:
            model = load_model_config(config)
        except EngineError:  # an architecture that the engine does not describe
            continue
        counted = rounded_weight_bytes(model, recipe_of(quantization, None), 2)
        assert held_weight_bytes(spec, "bfloat16", quantization) == counted, name
        num_models += 1
    assert num_models > 120


def test_slots_of_every_profile() -> None:
    settings = ServingSettings(max_loras=8, max_lora_rank=32)
    for name in [p["name"] for p in profiles()]:
        planned = engine_slot_bytes(resolve_model(name), settings, "bfloat16")
        found = slot_bytes(load_model_config(name), 2, max_loras=8, max_lora_rank=32)
        assert planned == found, name


def test_without_adapters_there_are_no_slots() -> None:
    assert engine_slot_bytes(resolve_model("llama-3.1-8b"), ServingSettings(), "bfloat16") == 0


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
