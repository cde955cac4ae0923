"""A GPU that counts what a step queues and how often the host waits.

``FakeGpu`` cannot tell the host's tensors from its own, since both lie in this machine's memory. Here a tensor is the
device's if it shares memory with one that was taken in, or was computed from one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from fake_gpu import FakeGraph, FakeMark, RecordingRuntime, TrackedGpu, device_tensors
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kvplan_engine import Engine
from kvplan_engine.kernels.cuda.launching.runtime import Kernel
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm")
_READS = frozenset({torch.Tensor.tolist, torch.Tensor.cpu})


@dataclass(slots=True)
class Launches:
    """What the host did in a step.

    kernels: launches of csrc/cuda. products: torch's matrix products (cuBLAS). operations: torch's other operations,
    each of which is a kernel or a copy within the device, or several. uploads, downloads: copies between host and
    device. graphs: replays, whose contents are not counted. waits: for the device.
    """

    kernels: int = 0
    products: int = 0
    operations: int = 0
    uploads: int = 0
    downloads: int = 0
    graphs: int = 0
    waits: int = 0

    @property
    def queued(self) -> int:
        """Everything that the host queues."""
        return self.kernels + self.products + self.operations + self.uploads + self.downloads + self.graphs

    def __sub__(self, other: Launches) -> Launches:
        return Launches(*(getattr(self, each.name) - getattr(other, each.name) for each in fields(self)))


class _CountedGraph(FakeGraph):
    def replay(self) -> None:
        gpu = self._gpu
        assert isinstance(gpu, CountedGpu)
        gpu.launches.graphs += 1
        gpu.is_working = True
        super().replay()
        gpu.is_working = False


class _CountedMark(FakeMark):
    def wait(self) -> None:
        before = len(self._gpu.events)
        super().wait()
        assert isinstance(self._gpu, CountedGpu)
        self._gpu.launches.waits += len(self._gpu.events) - before


class _CountedRuntime(RecordingRuntime):
    def __init__(self, gpu: CountedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def kernel(self, variant: KernelVariant) -> Kernel:
        kernel = super().kernel(variant)

        def launch(grid: tuple[int, int], threads: int, shared_bytes: int, params: ctypes.Structure) -> None:
            self._gpu.launches.kernels += 1
            kernel(grid, threads, shared_bytes, params)

        return kernel if self.recording is not None else launch


class _CountOperations(TorchDispatchMode):
    """Counts what touches the device, by kind. Another tensor that a device's operation reads was uploaded for it."""

    def __init__(self, gpu: CountedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        gpu, count = self._gpu, self._gpu.launches
        tensors = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, torch.Tensor)]
        if gpu.is_working or not any(map(gpu.holds, tensors)):
            return result
        name = func.overloadpacket.__name__
        returned = [each.alias_info for each in func._schema.returns]
        if any(alias is not None and not alias.is_write for alias in returned):
            return result  # a view
        strangers = [tensor for tensor in tensors if not gpu.holds(tensor)]
        if name == "_local_scalar_dense":
            count.waits += 1
        elif name == "copy_" and strangers:
            is_upload = gpu.holds(args[0])
            count.uploads += is_upload
            count.downloads += not is_upload
        else:
            count.products += name in _PRODUCTS
            count.operations += name not in _PRODUCTS
            count.uploads += len(strangers)
            gpu.take_in(*strangers, *(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)))
        return result


class _CountReads(TorchFunctionMode):
    def __init__(self, gpu: CountedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS and self._gpu.holds(args[0]):
            self._gpu.launches.waits += 1
            self._gpu.launches.downloads += 1
        return func(*args, **(kwargs or {}))


class CountedGpu(TrackedGpu):
    """launches: since they were last set to none."""

    def __init__(self) -> None:
        super().__init__()
        self.runtime = _CountedRuntime(self)
        self.launches = Launches()
        self.is_working = False

    def upload(self, values: Any) -> torch.Tensor:
        self.launches.uploads += 1
        uploaded = super().upload(values)
        self.take_in(uploaded)
        return uploaded

    def mark(self) -> FakeMark:
        return _CountedMark(self)

    def capture(self, work: Any, memory: object) -> FakeGraph:
        graph = super().capture(work, memory)
        graph.__class__ = _CountedGraph
        return graph

    @contextmanager
    def counting(self, engine: Engine) -> Iterator[None]:
        """Steps of ``engine`` in the block are counted."""
        self.take_in(*device_tensors(engine))
        with _CountOperations(self), _CountReads(self):
            yield

    def count(self, engine: Engine) -> Launches:
        """What one step of ``engine`` takes."""
        with self.counting(engine):
            self.launches = Launches()
            engine.step()
        return self.launches
