"""A GPU that is not there: the interface of device/cuda.py over the CPU and the emulated kernels.

Its graphs are what a GPU's are: a list of operations with the addresses they had when they were captured. A replay runs
these and no Python of the engine. Its memory is counted, and refused beyond its total, as a GPU's allocator would.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvplan_engine import Engine
from kvplan_engine.execution import starting
from kvplan_engine.execution.model_runner import ModelRunner
from kvplan_engine.kernels.cuda.launching.emulation import EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.runtime import Kernel
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant
from kvplan_engine.models import loaded_model
from kvplan_engine.models.device_kernels import DeviceKernels, cuda_kernels

MIB = 1024**2
_COUNTED_BYTES = 64 * 1024  # smaller tensors are not worth counting


class FakeGraph:
    """What was captured, as calls that take no argument: one for each launch."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.calls: list[Callable[[], object]] = []
        gpu.num_live_graphs += 1
        weakref.finalize(self, gpu.forget_graph)

    def replay(self) -> None:
        self._gpu.events.append("start")
        for call in self.calls:
            call()


class _OperationRecorder(TorchDispatchMode):
    """Notes every operation of torch with its arguments; what it returned is where a replay leaves its result."""

    def __init__(self, calls: list[Callable[[], object]]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        aliases = [value.alias_info for value in func._schema.returns if value.alias_info is not None]
        if any(not alias.is_write for alias in aliases):
            return result  # a view: nothing is launched
        writes_to_new = not aliases
        if isinstance(result, torch.Tensor) and writes_to_new:
            self._calls.append(lambda: result.copy_(func(*args, **kwargs)))
        else:
            self._calls.append(lambda: func(*args, **kwargs))
        return result


class _Allocator(TorchDispatchMode):
    """Counts the memory of new tensors and refuses what is more than there is."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.empty.memory_format and result.nbytes >= _COUNTED_BYTES:
            self._gpu.take(result.nbytes)
            # a view keeps the memory, too
            weakref.finalize(result.untyped_storage(), self._gpu.give_back, result.nbytes)
        return result


class FakeMark:
    """Waiting for a mark that lies before one that has been waited for already takes no time, and is no event."""

    def __init__(self, gpu: FakeGpu) -> None:
        gpu.num_marks += 1
        self._gpu, self._number = gpu, gpu.num_marks

    def wait(self) -> None:
        if self._number > self._gpu.reached:
            self._gpu.reached = self._number
            self._gpu.events.append("wait")


class FakePeak:
    bytes_above_start = 0

    def __enter__(self) -> FakePeak:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class FakeGpu:
    """graph_bytes: what each captured graph takes. refuses_graph: the capture, by number from 0, that finds no memory.

    events: in order, "start" for each replayed step and "wait" for each time that the host waited for the device.
    """

    def __init__(
        self, total_bytes: int = 400 * MIB, graph_bytes: int = 2 * MIB, refuses_graph: int | None = None
    ) -> None:
        self.torch_device = torch.device("cpu")
        self.name = "a GPU of our own making"
        self.total_bytes = total_bytes
        self.overhead_bytes = 16 * MIB
        self.is_asynchronous = True
        self.graph_bytes = graph_bytes
        self.refuses_graph = refuses_graph
        self.runtime = RecordingRuntime()
        self.events: list[str] = []
        self.num_captures = 0
        self.num_live_graphs = 0
        self.tensor_bytes = 0
        self.context_bytes = 8 * MIB
        self.most_used_bytes = 0
        self.is_lost = False
        self.num_marks = self.reached = 0

    # ---- memory

    def memory(self) -> _Allocator:
        """A context in which tensors are counted as the GPU's."""
        return _Allocator(self)

    def take(self, num_bytes: int) -> None:
        if self.used_bytes() + num_bytes > self.total_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes / MIB:.2f} MiB.")
        self.tensor_bytes += num_bytes
        self.most_used_bytes = max(self.most_used_bytes, self.used_bytes())

    def give_back(self, num_bytes: int) -> None:
        self.tensor_bytes -= num_bytes

    def forget_graph(self) -> None:
        self.num_live_graphs -= 1

    def used_bytes(self) -> int:
        return self.context_bytes + self.tensor_bytes + self.num_live_graphs * self.graph_bytes

    def peak(self) -> FakePeak:
        return FakePeak()

    def release_unused(self) -> None:
        pass

    def is_usable(self) -> bool:
        return not self.is_lost

    def auto_dtype(self, model_dtype: str) -> str:
        return "float32"

    # ---- the queue

    def host_buffer(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype)

    def upload(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.copy())

    def mark(self) -> FakeMark:
        return FakeMark(self)

    def graph_memory(self) -> object:
        return "one memory for all"

    def capture(self, work: Callable[[], None], memory: object) -> FakeGraph:
        assert memory == self.graph_memory()
        number, self.num_captures = self.num_captures, self.num_captures + 1
        if number == self.refuses_graph:
            raise RuntimeError("CUDA error: out of memory")
        graph = FakeGraph(self)
        self.runtime.recording = graph.calls
        try:
            with _OperationRecorder(graph.calls):
                work()
        finally:
            self.runtime.recording = None
        return graph


class TrackedGpu(FakeGpu):
    """One that knows which tensors lie on it."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: set[int] = set()
        self._kept: list[torch.Tensor] = []  # an address must not be given to another tensor

    def take_in(self, *tensors: torch.Tensor) -> None:
        """These lie on the device."""
        self._kept += tensors
        self._storages |= {tensor.untyped_storage().data_ptr() for tensor in tensors}

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._storages


class RecordingRuntime(EmulatedRuntime):
    """The emulation; while a graph is captured, launches are noted with a copy of their parameters, and not run.

    launched: the names of all kernels so far; sources: their files.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launched: set[str] = set()
        self.sources: set[str] = set()
        self.recording: list[Callable[[], object]] | None = None

    def kernel(self, variant: KernelVariant) -> Kernel:
        kernel = super().kernel(variant)
        self.launched.add(variant.kernel)
        self.sources.add(variant.source)

        def launch(grid: tuple[int, int], threads: int, shared_bytes: int, params: ctypes.Structure) -> None:
            if self.recording is None:
                kernel(grid, threads, shared_bytes, params)
                return
            copied = type(params).from_buffer_copy(params)
            self.recording.append(lambda: kernel(grid, threads, shared_bytes, copied))

        return launch


def take_gpu(monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu) -> FakeGpu:
    """Let engines open ``gpu`` and run the emulated kernels on it."""
    monkeypatch.setattr(starting, "open_device", lambda *_: gpu)

    def kernels(name: str, _device: object, dtype: torch.dtype) -> DeviceKernels:
        return cuda_kernels(gpu.runtime, dtype, wgmma=name == "cuda_wgmma", shares=name == "cuda_cascade")

    monkeypatch.setattr(loaded_model, "select_kernels", kernels)
    return gpu


def device_tensors(engine: Engine) -> list[torch.Tensor]:
    """One tensor in each piece of memory that ``engine`` holds on its device."""
    return rank_tensors(engine.serving.runner, engine.model)


def rank_tensors(runner: ModelRunner, model: Any) -> list[torch.Tensor]:
    """One tensor in each piece of memory that one rank holds on its device."""
    assert runner.kv is not None
    found = [runner.workspace["hidden"], runner.kv.planes, *model.weights.values()]
    found += [runner.chooser.tokens.chosen, runner._batches._numbers]
    stage = runner._batches._inputs.stage
    if stage is not None:
        found += stage.targets.values()
    if runner.graphs is not None:
        found.append(runner.graphs._batches._row_numbers)
    return found
