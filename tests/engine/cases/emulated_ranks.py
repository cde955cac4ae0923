"""Ranks as processes, each with a ``FakeGpu`` and the emulated kernels of its own, for what ranks do in shared memory.

``python emulated_ranks.py FD`` is the process of another rank. NCCL's part is gloo's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu
from fake_ranks import Call, Group

from kvplan_engine.device import collectives
from kvplan_engine.execution import starting
from kvplan_engine.execution.ranks import __main__ as rank_process
from kvplan_engine.execution.ranks import following, group
from kvplan_engine.kernels.cuda.launching.runtime import SharedMemory
from kvplan_engine.models import loaded_model
from kvplan_engine.models.device_kernels import DeviceKernels, cuda_kernels


class EmulatedRank:
    """This process' rank. calls: of the library. processes: of the other ranks, where this one is the first.

    What it shares is in use on its GPU, which keeps free no more than what is in use.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu, self.calls = FakeGpu(), list[Call]()
        self.gpu.overhead_bytes = self.gpu.context_bytes
        monkeypatch.setattr(self.gpu.runtime, "share", partial(self._share, self.gpu.runtime.share))
        self.processes: list[subprocess.Popen[bytes]] = []
        gloo: Callable[..., Any] = collectives._gloo
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
        monkeypatch.setattr(following, "open_cuda", lambda *_: self.gpu)
        monkeypatch.setattr(starting, "open_device", lambda *_: self.gpu)
        monkeypatch.setattr(loaded_model, "select_kernels", self._kernels)
        monkeypatch.setattr(collectives, "_nccl", lambda *place: Group(gloo(*place), self.calls, self.gpu))
        monkeypatch.setattr(group, "_start", self._start)

    def _share(self, share: Callable[[int], SharedMemory], num_bytes: int) -> SharedMemory:
        self.gpu.context_bytes += num_bytes
        return share(num_bytes)

    def _kernels(self, _name: str, _device: Any, dtype: torch.dtype) -> DeviceKernels:
        return replace(cuda_kernels(self.gpu.runtime, dtype), shares_memory=self.gpu.runtime)

    def _start(self) -> tuple[Connection, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        with theirs:
            paths = os.pathsep.join(path for path in sys.path if path)
            command = [sys.executable, __file__, str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": paths})
        self.processes.append(process)
        return Connection(ours.detach()), process


if __name__ == "__main__":
    EmulatedRank(pytest.MonkeyPatch())
    os._exit(rank_process.main())
