"""A GPU that does nothing before it is waited for: what the host gives away too early, or reads too early, shows.

``FakeGpu`` does each operation when it is queued, as no GPU does. Here, once an engine runs, every operation with a
tensor of the device among its arguments is put off until the host waits for a mark behind it, or reads a value. Host
memory that it copies from is read then, and not when it was queued.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from fake_gpu import FakeGraph, RecordingRuntime, TrackedGpu, device_tensors
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from kvplan_engine import Engine
from kvplan_engine.kernels.cuda.launching.runtime import Kernel
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant


class _LateRuntime(RecordingRuntime):
    """Launches go to the queue, with their parameters as they are now."""

    def __init__(self, gpu: LateGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def kernel(self, variant: KernelVariant) -> Kernel:
        kernel = super().kernel(variant)

        def launch(grid: tuple[int, int], threads: int, shared_bytes: int, params: ctypes.Structure) -> None:
            copied = type(params).from_buffer_copy(params)
            self._gpu.do(lambda: kernel(grid, threads, shared_bytes, copied))

        return kernel if self.recording is not None else launch


class _LateGraph(FakeGraph):
    def replay(self) -> None:
        for call in self.calls:
            self._gpu.do(call)


class _LateMark:
    def __init__(self, gpu: LateGpu) -> None:
        self._gpu, self._position = gpu, gpu.num_queued

    def wait(self) -> None:
        self._gpu.work_until(self._position)


class _PutOff(TorchDispatchMode):
    """Queues what touches the device. A new tensor is made at once, its values when its turn comes."""

    def __init__(self, gpu: LateGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = partial(func, *args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not self._gpu.puts_off or not any(map(self._gpu.holds, tensors)):
            return call()
        if func in _WAITED_FOR:
            self._gpu.work_until(self._gpu.num_queued)
            return call()
        returned = [each.alias_info for each in func._schema.returns]
        if any(alias is not None and alias.is_write for alias in returned):
            written = kwargs.get("out", args[0])
            self._gpu.take_in(*tree_leaves(written))  # a new tensor is the device's from the first such write on
            self._gpu.do(call)
            return written
        if any(alias is not None for alias in returned):  # a view
            return call()
        shapes = func(*_without_values(args), **_without_values(kwargs))
        result = tree_map(lambda shape: torch.empty_like(shape, device="cpu"), shapes)
        self._gpu.take_in(*tree_leaves(result))
        self._gpu.do(lambda: _copy_each(tree_leaves(call()), tree_leaves(result)))
        return result


_ATEN: Any = torch.ops.aten
_WAITED_FOR = frozenset({_ATEN._local_scalar_dense.default, _ATEN._unique2.default, _ATEN.nonzero.default})
"""What gives the host a value, or a tensor whose size is one: CUDA waits for these too."""

_READS = frozenset({torch.Tensor.tolist, torch.Tensor.cpu})


class _WaitToRead(TorchFunctionMode):
    """Values that leave the device are waited for, with all that was queued before; CUDA may wait for others too.

    A tensor that the host sends by itself lies in memory that is not pinned, and its copy may wait for the queue.
    """

    def __init__(self, gpu: LateGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS and self._gpu.puts_off:
            self._gpu.work_until(self._gpu.num_queued)
        if func is torch.Tensor.to and (kwargs or {}).get("non_blocking"):
            self._gpu.num_unpinned_copies += 1
        return func(*args, **(kwargs or {}))


def _copy_each(values: list[torch.Tensor], into: list[torch.Tensor]) -> None:
    for value, tensor in zip(values, into, strict=True):
        tensor.copy_(value)


def _without_values(arguments: Any) -> Any:
    """Tensors that have shapes alone: values may not be there yet, and an index out of them would be none."""
    return tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, arguments)


class LateGpu(TrackedGpu):
    """most_queued: operations that were waiting at once, at most. num_unpinned_copies: see _WaitToRead."""

    def __init__(self) -> None:
        super().__init__()
        self.runtime = _LateRuntime(self)
        self.is_late = False
        self._working = threading.RLock()
        self._worker: int | None = None
        self.num_queued = self.num_done = self.most_queued = self.num_unpinned_copies = 0
        self._queue: list[Callable[[], object]] = []

    def upload(self, values: np.ndarray) -> torch.Tensor:
        """Taken in: a launch that is put off knows it by its address."""
        uploaded = super().upload(values)
        self.take_in(uploaded)
        return uploaded

    @property
    def puts_off(self) -> bool:
        """Whether what this thread asks for goes to the queue: it is not what works on it."""
        return self.is_late and self._worker != threading.get_ident()

    @property
    def has_work(self) -> bool:
        """Whether something is queued."""
        return bool(self._queue)

    def do(self, call: Callable[[], object]) -> None:
        if not self.puts_off:
            call()
            return
        self._queue.append(call)
        self.num_queued += 1
        self.most_queued = max(self.most_queued, len(self._queue))

    def work_until(self, position: int) -> None:
        """Everything queued before ``position``, in order."""
        with self._working:
            self._worker = threading.get_ident()
            while self.num_done < position:
                self._queue.pop(0)()
                self.num_done += 1
            self._worker = None

    def mark(self) -> Any:
        return _LateMark(self)

    def capture(self, work: Callable[[], None], memory: object) -> FakeGraph:
        graph = super().capture(work, memory)
        graph.__class__ = _LateGraph
        return graph

    @contextmanager
    def late(self, engine: Engine) -> Iterator[None]:
        """From here on ``engine`` runs as late as it may."""
        runner = engine.serving.runner
        self.take_in(*device_tensors(engine))
        self.is_late = True
        try:
            with keeping(runner, "prepare"), self.putting_off():
                yield
                self.work_until(self.num_queued)
        finally:
            self.is_late = False

    @contextmanager
    def putting_off(self) -> Iterator[None]:
        """What this thread does with the device is put off, as long as that is late."""
        with _PutOff(self), _WaitToRead(self):
            yield


@contextmanager
def keeping(runner: Any, name: str) -> Iterator[None]:
    """Keep what the method ``name`` of ``runner`` returns: what is queued knows its tensors by address."""
    method, kept = getattr(runner, name), []

    def call(*arguments: Any) -> Any:
        kept.append(method(*arguments))
        return kept[-1]

    setattr(runner, name, call)
    try:
        yield
    finally:
        delattr(runner, name)
