"""Ranks on GPUs that are as late as they may be: each does nothing before somebody waits for it, or for another rank.

A sum waits for all ranks. So while the host waits for one GPU, the others work at what they were given until then,
each in a thread of its own, as GPUs do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from fake_gpu import RecordingRuntime, rank_tensors
from fake_ranks import FakeRanks, Group, RankGpu, _Captured, _InTurn
from late_gpu import LateGpu, _LateRuntime, keeping
from torch.utils._python_dispatch import _disable_current_modes

from kvplan_engine import Engine
from kvplan_engine.execution.ranks import following
from kvplan_engine.models.device_kernels import cuda_kernels


class _LateInTurn(_LateRuntime, _InTurn):
    def __init__(self, gpu: LateRankGpu) -> None:
        RecordingRuntime.__init__(self)
        self._gpu, self._turn = gpu, RankGpu._turn


class LateRankGpu(LateGpu, RankGpu):
    """One of several. problem: what ended its work, which its host would learn at the next wait."""

    def __init__(self, ranks: LateRanks) -> None:
        super().__init__()
        self.runtime = _LateInTurn(self)
        self.problem: BaseException | None = None
        self._ranks = ranks

    def work_until(self, position: int) -> None:
        with self._ranks.waiting():
            super().work_until(position)
        if self.problem is not None:
            raise self.problem

    def work(self) -> None:
        """Whatever is queued now."""
        LateGpu.work_until(self, self.num_queued)


class _LateGroup(Group):
    """Collectives of a late GPU are in its queue."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        now = super().__getattr__(name)

        def call(*arguments: Any) -> Any:
            gpu: Any = self._gpu

            def collect() -> None:
                with _disable_current_modes():  # gloo's threads copy, and would take this thread's modes with them
                    now(*arguments).wait()

            if (captured := gpu.runtime.recording) is not None:
                captured.append(collect)
            elif gpu.puts_off:
                gpu.do(collect)
            else:
                return now(*arguments)
            return _Captured()

        return call


class LateRanks(FakeRanks):
    """See the module. The kernels are those that the settings name."""

    gpus: dict[int, LateRankGpu]  # type: ignore[assignment]

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_gpus: int) -> None:
        super().__init__(monkeypatch, num_gpus)
        self._somebody_waits = threading.Condition()
        self._num_waiting = 0
        self._is_over = False
        run = following.FollowingRank.run

        def run_late(rank: following.FollowingRank) -> None:
            gpu: Any = rank._device
            with gpu.putting_off():
                run(rank)

        monkeypatch.setattr(following.FollowingRank, "run", run_late)

    def _open(self, *_: Any) -> LateRankGpu:
        assert self.device not in self.gpus, "two ranks on one GPU"
        self.gpus[self.device] = LateRankGpu(self)
        return self.gpus[self.device]

    def _kernels(self, name: str, _device: Any, dtype: torch.dtype) -> Any:
        runtime = self.gpus[self.device].runtime
        return cuda_kernels(runtime, dtype, wgmma=name == "cuda_wgmma", shares=name == "cuda_cascade")

    def _nccl(self, store: torch.distributed.Store, number: int, count: int) -> _LateGroup:
        calls = self.calls[self.device, count]
        return _LateGroup(self._gloo(store, number, count), calls, self.gpus[self.device])

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """All GPUs work meanwhile."""
        with self._somebody_waits:
            self._num_waiting += 1
            self._somebody_waits.notify_all()
        try:
            yield
        finally:
            with self._somebody_waits:
                self._num_waiting -= 1

    def _work(self, gpu: LateRankGpu) -> None:
        while True:
            with self._somebody_waits:
                self._somebody_waits.wait_for(lambda: self._is_over or (self._num_waiting and gpu.has_work), 0.05)
                if self._is_over:
                    return
                if not self._num_waiting:
                    continue
            try:
                gpu.work()
            except Exception as problem:  # noqa: BLE001 - whatever it is, its host raises it
                gpu.problem = problem
                return

    @contextmanager
    def late(self, engine: Engine) -> Iterator[None]:
        """From here on all ranks of ``engine`` run as late as they may."""
        first, *others = (self.gpus[number] for number in sorted(self.gpus))
        by_device = {id(rank._device): rank for rank in self.following}
        self._is_over = False
        workers = [threading.Thread(target=self._work, args=(gpu,), daemon=True) for gpu in others]
        with ExitStack() as kept:
            for gpu in others:
                rank = by_device[id(gpu)]
                gpu.take_in(*rank_tensors(rank._own, rank._model))
                kept.enter_context(keeping(rank._own, "rebuild"))
                gpu.is_late = True
            for worker in workers:
                worker.start()
            try:
                with first.late(engine):
                    yield
                for gpu in others:
                    gpu.work_until(gpu.num_queued)
            finally:
                for gpu in others:
                    gpu.is_late = False
                with self._somebody_waits:
                    self._is_over = True
                    self._somebody_waits.notify_all()
                for worker in workers:
                    worker.join(60)
