"""What a decode step of the CUDA engine costs the host: launches by kind, and microseconds of its thread.

    python benchmarks/host_time.py [--ranks 1 2] [--custom-all-reduce] [--sequences 8] [--steps 200]

The engine runs as on GPUs, one for each rank, on devices that are not there (``tests/engine/cases``): kernels,
collectives and replays of graphs return at once, torch's operations are those of a very narrow model with the layers of
llama-3.1-8b. What is left is Python and torch's dispatch; what a driver or NCCL takes for a launch comes on top.
Processor time of one thread: ranks that share a processor here do not count each other's.

In a row of a captured step the launches are those of the replay; what the graph holds stands behind it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/engine/cases"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

import pytest
import torch
from counted_gpu import CountedGpu
from fake_gpu import FakeGraph, take_gpu
from fake_ranks import FakeRanks

from kvplan_engine import Engine, EngineConfig, SamplingParams
from kvplan_engine.device.collectives import Collectives
from kvplan_engine.device.custom_all_reduce import Choice
from kvplan_engine.execution.ranks.following import FollowingRank
from kvplan_engine.kernels.cuda.all_reduce import OneShotAllReduce
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime, Kernel, OpenedMemory
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant
from kvplan_engine.models import device_kernels
from kvplan_engine.models.device_kernels import DeviceKernels

MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}
_WARM_UPS = 20


class IdleGpu(CountedGpu):
    """A GPU whose kernels and graphs do nothing. in_graph: launches that the last captured step holds."""

    def __init__(self) -> None:
        super().__init__()
        self.in_graph = 0
        self.runtime.kernel = self._kernel  # type: ignore[method-assign]

    def capture(self, work: Callable[[], None], memory: object) -> FakeGraph:
        graph = super().capture(work, memory)
        self.in_graph = len(graph.calls)
        graph.calls.clear()
        return graph

    def _kernel(self, variant: KernelVariant) -> Kernel:
        return self._launch

    def _launch(self, *_: object) -> None:
        self.launches.kernels += 1
        if self.runtime.recording is not None:
            self.runtime.recording.append(lambda: None)


class _Done:
    def wait(self) -> None:
        """Nothing was begun."""


class _IdleGroup:
    """A process group whose collectives do nothing but being counted in ``calls``."""

    def __init__(self, gpu: IdleGpu, calls: Counter[str]) -> None:
        self._gpu, self._calls = gpu, calls

    def __getattr__(self, name: str) -> Callable[..., _Done]:
        def call(*_: object) -> _Done:
            self._calls[name] += 1
            if self._gpu.runtime.recording is not None:
                self._gpu.runtime.recording.append(lambda: None)
            return _Done()

        return call


class IdleRanks(FakeRanks):
    """Ranks on an IdleGpu each. collectives: by device, by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_gpus: int, *, custom: bool) -> None:
        self.collectives: dict[int, Counter[str]] = {number: Counter() for number in range(num_gpus)}
        self._custom = custom
        super().__init__(monkeypatch, num_gpus)
        monkeypatch.setattr(device_kernels, "choose_all_reduce", _unchecked_all_reduce)

    def _kernels(self, name: str, device: Any, dtype: torch.dtype) -> DeviceKernels:
        kernels: DeviceKernels = super()._kernels(name, device, dtype)
        return replace(kernels, shares_memory=self.gpus[self.device].runtime if self._custom else None)

    def _open(self, *_: Any) -> Any:
        self.gpus[self.device] = IdleGpu()  # type: ignore[assignment]
        return self.gpus[self.device]

    def _nccl(self, *_: Any) -> Any:
        return _IdleGroup(self.gpus[self.device], self.collectives[self.device])  # type: ignore[arg-type]


def _unchecked_all_reduce(runtime: CudaRuntime, collectives: Collectives, *_: object, **__: object) -> Choice:
    """Over memory that no kernel looks at."""
    memory = [OpenedMemory(0)] * collectives.rank.count
    return Choice(OneShotAllReduce(runtime, collectives.rank.index, memory), "")


def _timed(work: Callable[..., Any], micros: list[float], *arguments: Any) -> Any:
    """Call ``work`` and note the microseconds of this thread's processor time that it took."""
    started = time.thread_time_ns()
    result = work(*arguments)
    micros.append((time.thread_time_ns() - started) / 1000)
    return result


def measure(num_ranks: int, num_sequences: int, num_steps: int, *, eager: bool, custom: bool) -> list[str]:
    """One row: launches of a decode step, medians of microseconds in the first rank and in the second."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        ranks = None if num_ranks == 1 else IdleRanks(monkeypatch, num_ranks, custom=custom)
        if ranks is None:
            take_gpu(monkeypatch, IdleGpu())
        settings: dict[str, Any] = {"max_num_seqs": num_sequences, "max_num_batched_tokens": 64, "dtype": "float32"}
        settings |= {"tensor_parallel_size": num_ranks, "enforce_eager": eager}
        first: list[float] = []
        second: list[float] = []
        follow = partial(_timed, FollowingRank._step, second)
        monkeypatch.setattr(FollowingRank, "_step", lambda rank, indices: follow(rank, indices))
        engine = Engine(EngineConfig(model=MODEL, load_format="dummy", **settings))
        gpu: Any = engine.serving.runner.device
        params = SamplingParams(temperature=0.0, max_tokens=num_steps + 2 * _WARM_UPS, ignore_eos=True)
        for number in range(num_sequences):
            engine.add_request(str(number), [5, 6, 7], params)
        for _ in range(_WARM_UPS):
            engine.step()
        for _ in range(num_steps):
            _timed(engine.step, first)
        done: Counter[str] = Counter() if ranks is None else ranks.collectives[0]
        done.clear()
        launches = gpu.count(engine)
        row = [launches.kernels, launches.products, launches.operations, sum(done.values()), launches.downloads]
        row += [launches.graphs, gpu.in_graph if launches.graphs else 0, round(statistics.median(first))]
        engine.close()
        return [*map(str, row), str(round(statistics.median(second[-num_steps:]))) if second else ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--custom-all-reduce", action="store_true", help="sums by our kernel instead of NCCL's")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    columns = ("own kernels", "products", "torch's operations", "collectives", "copies to the host", "graphs")
    columns += ("launches in the graph", "host us, first rank", "second rank")
    print("| ranks, step | " + " | ".join(columns) + " |")
    print("| --- " * (len(columns) + 1) + "|")
    for num_ranks in options.ranks:
        for eager in (True, False):
            row = measure(num_ranks, options.sequences, options.steps, eager=eager, custom=options.custom_all_reduce)
            print(f"| {num_ranks}, {'eager' if eager else 'captured'} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
