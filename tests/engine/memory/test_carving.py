"""Settings and back: the pool is what it was, whatever larger steps took in between."""

from __future__ import annotations

import pytest
from small_models import Checkpoint

from kvplan_engine import LLM
from kvplan_engine.errors import EngineError, OutOfDeviceMemory

SETTINGS = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 128}
LARGE, TOO_LARGE = 8_000_000, 12_000_000  # sequences, whose bookkeeping alone takes memory


@pytest.fixture
def llm(checkpoints: dict[str, Checkpoint]) -> LLM:
    return LLM(str(checkpoints["llama"].path), dtype="float32", device="cpu", device_memory="256MiB", **SETTINGS)


def test_larger_steps_leave_no_overhead_behind(llm: LLM) -> None:
    with llm:
        engine = llm.engine
        before = engine.memory
        engine.reconfigure(max_num_seqs=LARGE)
        assert engine.memory.overhead_bytes > before.overhead_bytes
        engine.reconfigure(max_num_seqs=8)
        assert engine.memory == before
        engine.reconfigure(max_num_seqs=4)
        assert engine.memory.overhead_bytes == before.overhead_bytes


def test_refused_settings_leave_none_either(llm: LLM) -> None:
    with llm:
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
