"""Settings beyond any machine end in a sentence of the engine's own, before anything is allocated for them."""

from typing import Any

import pytest
import torch
from small_models import Checkpoint

from kvplan_engine import LLM, EngineError, OutOfDeviceMemory
from kvplan_engine.device.allocation import allocating
from kvplan_engine.memory import workspace
from kvplan_engine.offload.host_tier import FreeSlots

SETTINGS: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64, "dtype": "float32"}
COUNTED: dict[str, Any] = {"load_format": "none", "device": "cpu", "device_memory": "256MiB"}
PIB = 2**50


@pytest.fixture(scope="module")
def llm(checkpoints: dict[str, Checkpoint]) -> LLM:
    """Its tests leave its pool as they found it."""
    return LLM(str(checkpoints["llama"].path), device="cpu", device_memory="256MiB", **SETTINGS)


@pytest.mark.parametrize(
    ("changes", "words", "phase"),
    [
        ({"max_num_batched_tokens": 10**9}, "nothing is left for the KV pool: of 0.22 GiB, weights take", "kv_init"),
        ({"swap_space": 10**18}, "would take 931,322,574.62 GiB of host memory, of which", "kv_host"),
        ({"kv_host_cache_bytes": 10**15}, "would take 931,322.57 GiB of host memory, of which", "kv_host"),
    ],
)
def test_memory_that_nobody_has_is_not_asked_for(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], words: str, phase: str
) -> None:
    before, asked, allocate = llm.engine.memory, [], torch.empty

    def counted(*sizes: Any, **options: Any) -> torch.Tensor:
        found: torch.Tensor = allocate(*sizes, **{**options, "device": "meta"})
        asked.append(found.numel() * found.element_size())
        return allocate(*sizes, **options)

    monkeypatch.setattr(torch, "empty", counted)
    with pytest.raises(OutOfDeviceMemory) as caught:
        llm.engine.reconfigure(**changes)
    assert words in caught.value.message and "alloc" not in caught.value.message
    assert caught.value.phase == phase and caught.value.hint is not None
    assert all(number < 2**30 for number in asked)
    monkeypatch.undo()
    llm.engine.reconfigure(**{name: SETTINGS.get(name, 0) for name in changes})
    assert llm.engine.memory == before


def test_host_memory_is_refused_where_it_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "available_memory_bytes", lambda: 2**20)
    workspace.HostPool(16, 2**16, is_pinned=False)
    with pytest.raises(OutOfDeviceMemory, match="of which 0\\.00 GiB is free") as caught:
        workspace.HostPool(17, 2**16, is_pinned=False)
    assert (caught.value.requested_bytes, caught.value.free_bytes) == (17 * 2**16, 2**20)


def test_swap_space_that_is_only_counted_takes_no_memory(checkpoints: dict[str, Checkpoint]) -> None:
    """A list of its free slots would have more entries than any machine has bytes."""
    path = str(checkpoints["llama"].path)
    with LLM(path, **COUNTED, **SETTINGS, swap_space=2**62, kv_host_cache_bytes=2**62) as llm:
        llm.engine.check()
        assert llm.engine.get_stats()["kv_host_cache_blocks"] == 0


def test_a_pool_of_more_blocks_than_have_numbers_is_refused(checkpoints: dict[str, Checkpoint]) -> None:
    with pytest.raises(EngineError, match="blocks is more than the 2,147,483,647 that can be numbered") as caught:
        LLM(str(checkpoints["llama"].path), **{**COUNTED, "device_memory": 2**62}, **SETTINGS)
    assert caught.value.hint == "lower device_memory, or raise block_size"


def test_free_slots_come_back_in_their_order() -> None:
    free = FreeSlots(10, 5)
    assert free.take(3) == (10, 11, 12)
    free.give_back((10, 11))
    assert len(free) == 4
    free.check([12])
    assert free.take(4) == (10, 11, 13, 14)
    with pytest.raises(AssertionError, match="more slots than are free"):
        free.take(1)
    with pytest.raises(AssertionError, match="lost or held twice"):
        free.check([10, 11, 12, 13])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("std::bad_alloc\nmore"), "running: std::bad_alloc"),
        (MemoryError(), "running."),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
                "to allocate 3221225472 bytes. Error code 12 (Cannot allocate memory)"
            ),
            "running: the system has no room for 3,221,225,472 bytes more.",
        ),
    ],
)
def test_a_failed_allocation_is_told_in_the_engines_words(error: Exception, words: str) -> None:
    with pytest.raises(OutOfDeviceMemory) as caught, allocating("runtime"):
        raise error
    assert caught.value.message.endswith(words)


def test_the_message_is_torchs_own() -> None:
    """What the words above are made from, as this torch has it."""
    with pytest.raises(OutOfDeviceMemory, match="no room for 1,125,899,906,842,624 bytes more"), allocating("kv_init"):
        torch.empty(PIB, dtype=torch.uint8)
