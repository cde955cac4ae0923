"""Settings and back: the pool is what it was, whatever larger steps took in between."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from small_models import Checkpoint

from kvplan_engine import LLM
from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.config import EngineConfig
from kvplan_engine.errors import EngineError, OutOfDeviceMemory
from kvplan_engine.execution import carving
from kvplan_engine.execution.model_runner import ModelRunner
from kvplan_engine.execution.profile_step import ProfilePeak
from kvplan_engine.memory.breakdown import MemoryBreakdown

MIB = 2**20
SETTINGS = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 128}
LARGE, TOO_LARGE = 160, 240  # sequences, of 256 MiB; 128 are reserved for overhead in any case


@pytest.fixture
def llm(checkpoints: dict[str, Checkpoint], monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    """On a device where a step takes 1 MiB for each sequence beside its buffers.

    How far a real process grows depends on what it has freed before, which is other tests' doing.
    """
    really_measured = carving.measure_profile_step

    def measured(
        runner: ModelRunner, config: EngineConfig, memory: MemoryBreakdown, layout: KvLayout, max_model_len: int
    ) -> ProfilePeak:
        peak = really_measured(runner, config, memory, layout, max_model_len)
        return replace(peak, extra_bytes=config.max_num_seqs * MIB)

    monkeypatch.setattr(carving, "measure_profile_step", measured)
    path = str(checkpoints["llama"].path)
    llm = LLM(path, dtype="float32", device="cpu", device_memory="256MiB", **SETTINGS)
    monkeypatch.setattr(llm.engine.device, "used_bytes", lambda: 0)
    with llm:
        yield llm


def test_larger_steps_leave_no_overhead_behind(llm: LLM) -> None:
    engine = llm.engine
    before = engine.memory
    engine.reconfigure(max_num_seqs=LARGE)
    assert engine.memory.overhead_bytes == LARGE * MIB > before.overhead_bytes
    assert engine.memory.num_blocks < before.num_blocks
    engine.reconfigure(max_num_seqs=8)
    assert engine.memory == before
    engine.reconfigure(max_num_seqs=4)
    assert engine.memory.overhead_bytes == before.overhead_bytes


def test_refused_settings_leave_none_either(llm: LLM) -> None:
    engine = llm.engine
    before = engine.memory
    with pytest.raises(OutOfDeviceMemory, match="nothing is left for the KV pool"):
        engine.reconfigure(max_num_seqs=TOO_LARGE)
    assert not engine.has_pool
    with pytest.raises(EngineError, match="has no pool"):
        engine.add_request("a", [1], None)  # type: ignore[arg-type]
    engine.reconfigure(max_num_seqs=8)
    assert engine.has_pool
    assert engine.memory == before
