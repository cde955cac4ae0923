"""Ranks on GPUs that are not there: each a thread of this process with a ``FakeGpu`` of its own.

The code is that of the ranks' processes. NCCL's part is gloo's, and every call of it is noted.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpu, RecordingRuntime

from kvplan_engine.device import collectives
from kvplan_engine.errors import EngineError
from kvplan_engine.execution import starting
from kvplan_engine.execution.model_runner import ModelRunner
from kvplan_engine.execution.ranks import following, group
from kvplan_engine.execution.ranks.messages import Refusal
from kvplan_engine.kernels.cuda.launching.runtime import Kernel
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant
from kvplan_engine.models import loaded_model
from kvplan_engine.models.device_kernels import cuda_kernels

_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Call:
    """A collective. storages: addresses of the memory that it reads and writes."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    storages: frozenset[int]


class RankGpu(FakeGpu):
    """The emulation has one machine for all ranks: they take turns. num_uploads: arrays sent to this GPU."""

    _turn = threading.Lock()

    def __init__(self) -> None:
        super().__init__()
        self.num_uploads = 0
        self.runtime = _InTurn(self._turn)

    def upload(self, values: np.ndarray) -> torch.Tensor:
        self.num_uploads += 1
        return super().upload(values)


class _InTurn(RecordingRuntime):
    def __init__(self, turn: threading.Lock) -> None:
        super().__init__()
        self._turn = turn

    def kernel(self, variant: KernelVariant) -> Kernel:
        with self._turn:
            kernel = super().kernel(variant)

        def launch(*arguments: Any) -> None:
            with self._turn:
                kernel(*arguments)

        return launch


class _Work:
    """A collective that waits for a rank that is gone, as NCCL's do on a GPU; ``aborted`` ends it without a result."""

    def __init__(self, inner: Any, aborted: threading.Event) -> None:
        self._inner, self._aborted = inner, aborted

    def wait(self) -> None:
        until = time.monotonic() + _PATIENCE_SECONDS
        while not self._inner.is_completed() and not self._aborted.is_set():
            assert time.monotonic() < until, "nobody ends a collective that waits for a lost rank"
            time.sleep(0.0002)
        try:
            if not self._aborted.is_set():
                self._inner.wait()
        except RuntimeError:  # gloo has noticed; NCCL waits on
            assert self._aborted.wait(_PATIENCE_SECONDS), "nobody ends a collective that waits for a lost rank"


class _Captured:
    """A collective that a graph holds: nothing has been done yet."""

    def wait(self) -> None:
        """The other streams of the capture wait for it."""


class Group:
    """A process group of gloo that notes in ``calls`` what it is asked for.

    While ``gpu`` captures a graph, the collective is done when the graph is replayed.
    """

    def __init__(self, inner: Any, calls: list[Call], gpu: RankGpu) -> None:
        self._inner, self._calls, self._gpu = inner, calls, gpu
        self._aborted = threading.Event()

    def abort(self) -> None:
        self._aborted.set()

    def close(self) -> None:
        """As of a process that has ended: gloo's threads in others would wait for it, and ends of groups for them."""
        self._inner = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            tensors = [each for argument in arguments for each in _tensors(argument)]
            shapes = tuple(tuple(each.shape) for each in tensors)
            self._calls.append(Call(name, shapes, frozenset(map(storage_of, tensors))))
            if self._aborted.is_set():
                raise RuntimeError("NCCL communicator was aborted")
            if (captured := self._gpu.runtime.recording) is not None:
                captured.append(lambda: call(*arguments).wait())
                return _Captured()
            work = getattr(self._inner, name)(*arguments)
            # gloo's sends and receipts are completed by whoever waits for them
            return work if name in ("send", "recv") else _Work(work, self._aborted)

        return call


def _tensors(argument: Any) -> list[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        return [argument]
    return [each for part in argument for each in _tensors(part)] if isinstance(argument, list) else []


def storage_of(tensor: torch.Tensor) -> int:
    """Where its memory begins."""
    return tensor.untyped_storage().data_ptr()


class _Thread(threading.Thread):
    """A following rank, with what group.py asks of its process."""

    pid = 0

    def __init__(self, connection: Connection, ranks: FakeRanks) -> None:
        super().__init__(daemon=True)
        self._connection, self._ranks, self.is_wrong = connection, ranks, False

    def run(self) -> None:
        try:
            rank = following.FollowingRank(self._connection.recv(), self._connection)
            self._ranks.following.append(rank)
            rank.run()
        except EOFError:
            self._close_groups()
        except EngineError as problem:
            self._connection.send(Refusal.of(problem))
            self.is_wrong = True
            self._close_groups()
        except BaseException:
            self.is_wrong = True
            raise
        finally:
            self._connection.close()

    def poll(self) -> int | None:
        return None if self.is_alive() else int(self.is_wrong)

    def kill(self) -> None:
        """It ends when its connection is closed."""

    def _close_groups(self) -> None:
        for rank in self._ranks.following:
            if rank._connection is self._connection:
                rank._collectives._group.close()
                rank._collectives._all.close()

    def wait(self) -> None:
        self.join(60)
        assert not self.is_alive(), "a rank waits for another one"


class FakeRanks:
    """What ``num_gpus`` did, by the number that a rank chose. calls: by device and number of ranks in the group."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_gpus: int) -> None:
        self.gpus: dict[int, RankGpu] = {}
        self.following: list[following.FollowingRank] = []
        self.calls: defaultdict[tuple[int, int], list[Call]] = defaultdict(list)
        self._chosen = threading.local()
        self._gloo = collectives._gloo
        monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
        monkeypatch.setattr(torch.cuda, "set_device", self._choose)
        monkeypatch.setattr(following, "open_cuda", self._open)
        monkeypatch.setattr(starting, "open_device", self._open)
        monkeypatch.setattr(group, "_start", self._start)
        monkeypatch.setattr(loaded_model, "select_kernels", self._kernels)
        monkeypatch.setattr(collectives, "_nccl", self._nccl)
        monkeypatch.delattr(collectives, "_gloo")

    def runners(self, first: ModelRunner) -> dict[int, ModelRunner]:
        """By device; ``first`` is the first rank's."""
        others = {each._collectives.rank.number: each._own for each in self.following}
        return {0: first, **others}

    @property
    def device(self) -> int:
        """Of this thread; a process that chooses none has the first."""
        return getattr(self._chosen, "number", 0)

    def _choose(self, number: int) -> None:
        self._chosen.number = number

    def _open(self, *_: Any) -> RankGpu:
        assert self.device not in self.gpus, "two ranks on one GPU"
        self.gpus[self.device] = RankGpu()
        return self.gpus[self.device]

    def _kernels(self, _name: str, _device: Any, dtype: torch.dtype) -> Any:
        return cuda_kernels(self.gpus[self.device].runtime, dtype)

    def _nccl(self, store: torch.distributed.Store, number: int, count: int) -> Group:
        calls = self.calls[self.device, count]
        return Group(self._gloo(store, number, count), calls, self.gpus[self.device])

    def _start(self) -> tuple[Connection, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        thread: Any = _Thread(Connection(theirs.detach()), self)
        thread.start()
        return Connection(ours.detach()), thread
