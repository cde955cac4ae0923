"""Planner and engine agree on weights in few bits, slots of adapters, pools of a few blocks, and free memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_account import engine_outcome

from kvplan.catalog.models import profile_names, profiles, resolve_model
from kvplan.estimate.adapters import engine_slot_bytes
from kvplan.estimate.kvplan.held_weights import held_weight_bytes
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.machine import host
from kvplan.paths import profiles_dir
from kvplan.settings import ServingSettings
from kvplan_engine import EngineConfig, EngineError
from kvplan_engine.adapters.sites import slot_bytes
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.checkpoints.quantised.held import rounded_weight_bytes
from kvplan_engine.description.weight_format import recipe_of
from kvplan_engine.device import process_memory
from kvplan_engine.device import process_memory as engine_groups


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


MIB = 1024**2
NO_LIMIT = 9223372036854771712  # as cgroup-v1 writes it
Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file of a machine of its own."""
    for module, root in ((host, "_ROOT"), (engine_groups, "_GROUPS")):
        monkeypatch.setattr(module, "_OWN", tmp_path / "own")
        monkeypatch.setattr(module, root, tmp_path / "groups")

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


def available() -> int:
    """In what both packages say."""
    planner = min((room.unused + room.cached for room in host.rooms()), default=-1)
    assert min(engine_groups.available_in_groups(), default=-1) == planner
    return planner


def test_a_machine_without_limits(write: Write) -> None:
    assert available() == -1, "no groups at all"
    write("own", "0::/\n")
    assert available() == -1
    assert host.available_memory_bytes() == pytest.approx(process_memory.available_memory_bytes(), rel=0.05)


@pytest.mark.parametrize("where", ["", "user.slice", "user.slice/job"])
def test_each_group_above_limits_it(write: Write, where: str) -> None:
    write("own", "0::/user.slice/job\n")
    for group in ("", "user.slice", "user.slice/job"):
        write(f"groups/{group}/memory.max", f"{1024 * MIB}\n" if group == where else "max\n")
        write(f"groups/{group}/memory.current", f"{100 * MIB}\n")
        write(f"groups/{group}/memory.stat", f"anon 1\ninactive_file {30 * MIB}\n")
    assert available() == 954 * MIB
    assert host.available_memory_bytes() == process_memory.available_memory_bytes() == 954 * MIB
    assert host.free_memory_bytes() == 924 * MIB, "without giving up what is cached"


def test_the_first_version_of_groups(write: Write) -> None:
    write("own", "5:cpu:/job\n4:memory:/job\n0::/job\n")
    for group, limit in (("memory/job", 512 * MIB), ("memory", NO_LIMIT)):
        write(f"groups/{group}/memory.limit_in_bytes", f"{limit}\n")
        write(f"groups/{group}/memory.usage_in_bytes", f"{600 * MIB}\n")
        write(f"groups/{group}/memory.stat", f"inactive_file 1\ntotal_inactive_file {8 * MIB}\n")
    assert available() == 8 * MIB, "used beyond its limit"
