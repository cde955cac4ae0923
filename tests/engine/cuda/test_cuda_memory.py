"""The account of a GPU's memory, with an NVML and a torch that say what the test wants."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from kvplan_engine.device.cuda_memory import CudaMemory, read_cuda_memory

GIB = 1024**3
DEVICE = torch.device("cpu")


class FakeNvml:
    """NVML with some processes on one device, or failing."""

    class NVMLError(Exception):
        pass

    def __init__(self, processes: dict[int, int | None], fails: str = "") -> None:
        self._processes, self._fails = processes, fails
        self.asked: list[str] = []
        self.is_open = False

    def nvmlInit(self) -> None:
        if self._fails == "init":
            raise self.NVMLError
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if self._fails == "handle":
            raise self.NVMLError
        self.asked.append(uuid)
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, _: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self._processes.items()]


@pytest.fixture(autouse=True)
def _fake_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 40 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 45 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1234-abcd"))


def test_the_parts_are_told_apart() -> None:
    nvml = FakeNvml({os.getpid(): 46 * GIB, 1: 20 * GIB, 2: 3 * GIB})
    memory = read_cuda_memory(DEVICE, nvml)
    assert memory == CudaMemory(80 * GIB, 10 * GIB, 40 * GIB, 5 * GIB, 46 * GIB, 23 * GIB)
    assert memory.overhead_bytes == GIB
    assert memory.unexplained_bytes() == GIB
    assert nvml.asked == ["GPU-1234-abcd"]
    assert not nvml.is_open


@pytest.mark.parametrize(
    "nvml",
    [FakeNvml({}, "init"), FakeNvml({}, "handle"), FakeNvml({os.getpid(): None}), FakeNvml({1: 5})],
    ids=["no driver library", "unknown device", "no figures", "own process unnamed"],
)
def test_what_nvml_does_not_say_is_none_and_not_zero(nvml: FakeNvml) -> None:
    memory = read_cuda_memory(DEVICE, nvml)
    assert (memory.process_bytes, memory.other_process_bytes, memory.overhead_bytes) == (None, None, None)
    assert memory.unexplained_bytes() == 25 * GIB
    assert not nvml.is_open
