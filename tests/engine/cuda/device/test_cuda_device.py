"""What a CUDA device takes for its own account when it is opened, with a torch that says what the test wants."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kvplan_engine.device import cuda
from kvplan_engine.device.cuda import CudaDevice

GIB = 1024**3


class Cyclic:
    """Memory that only the garbage collector finds, as a dropped engine's is: its loop holds one of its methods."""

    def __init__(self, held: list[int]) -> None:
        self._held = held
        self._itself = self

    def __del__(self) -> None:
        self._held.append(40 * GIB)


def test_what_a_dropped_engine_left_is_given_back_before_the_device_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    cached = [40 * GIB]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(is_integrated=False))
    monkeypatch.setattr(cuda, "_make_context", lambda device: None)

    def empty_cache() -> None:
        cached[0] -= sum(freed)  # only what no object holds any more

    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 * GIB - cached[0], 80 * GIB))
    Cyclic(freed)
    assert CudaDevice(None).overhead_bytes < GIB
