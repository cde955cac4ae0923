"""Host memory for KV on a GPU: exactly what was asked for is pinned, and it is given back."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from tiny_configs import llama_config

from kvplan_engine import Engine, EngineConfig, OutOfDeviceMemory
from kvplan_engine.memory.workspace import HostPool

MODEL = llama_config(max_position_embeddings=64)


class FakeCudart:
    """The two calls of CUDA's runtime. pinned: bytes by address. status: what registering returns."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.status = 0

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        if not self.status:
            self.pinned[address] = num_bytes
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> FakeCudart:
    fake = FakeCudart()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)

    def check_error(status: int) -> None:
        if status:
            raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "check_error", check_error)
    return fake


def test_what_is_pinned_is_what_was_asked_for_and_is_given_back_once(cudart: FakeCudart) -> None:
    pool = HostPool(5, 1_000_000, is_pinned=True)  # torch's allocator would pin 8,388,608 bytes
    assert pool.blocks.shape == (5, 1_000_000)
    assert cudart.pinned == {pool.blocks.data_ptr(): 5_000_000}
    pool.blocks.fill_(7)
    pool.close()
    assert cudart.pinned == {}
    pool.close()


def test_a_pool_that_nobody_closed_is_given_back_when_it_is_dropped(cudart: FakeCudart) -> None:
    pool = HostPool(2, 4096, is_pinned=True)
    del pool
    gc.collect()
    assert cudart.pinned == {}


def test_memory_that_cannot_be_pinned_is_named_by_phase(cudart: FakeCudart) -> None:
    cudart.status = 2
    with pytest.raises(OutOfDeviceMemory, match="swapped and cached KV could not be allocated") as info:
        HostPool(2, 4096, is_pinned=True)
    assert info.value.phase == "kv_host"
    with pytest.raises(OutOfDeviceMemory, match="GiB of host memory"):
        HostPool(2**30, 2**30, is_pinned=True)


def test_an_engine_gives_it_back_with_its_pool(cudart: FakeCudart, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[HostPool] = []
    start = HostPool.__init__

    def pinned(self: HostPool, num_slots: int, block_bytes: int, **_: Any) -> None:
        start(self, num_slots, block_bytes, is_pinned=True)
        made.append(self)

    monkeypatch.setattr(HostPool, "__init__", pinned)
    settings: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "max_model_len": 32}
    settings |= {"device": "cpu", "dtype": "float32", "load_format": "dummy", "device_memory": 200 * 2**20}
    with Engine(EngineConfig(MODEL, swap_space=2**20, **settings)) as engine:
        first = list(cudart.pinned)
        engine.reconfigure(block_size=8)
        assert len(made) == 2 and len(first) == len(cudart.pinned) == 1
    assert cudart.pinned == {}
