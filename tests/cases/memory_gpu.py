"""GPUs whose memory alone is there: torch's driver answers by an account, engines take from it without any tensor.

Everything that divides memory and says what is left is the real one: ``CudaDevice``, ``MemoryCarver``, the worker and
its messages, the planner. Steps draw random tokens, as with ``load_format`` none.
"""

from __future__ import annotations

import json
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvplan.machine import device as machine_module
from kvplan.sweeps import session
from kvplan.sweeps.worker import answers
from kvplan.sweeps.worker.answers import answer
from kvplan.sweeps.worker.client import Worker
from kvplan.sweeps.worker.engine_host import EngineHost, greeting
from kvplan_engine import engine as engine_module
from kvplan_engine.config import EngineConfig
from kvplan_engine.device import cuda
from kvplan_engine.device.allocation import allocating
from kvplan_engine.device.device import open_device
from kvplan_engine.execution import carving
from kvplan_engine.execution.capacity import CapacityRunner
from kvplan_engine.execution.graphs import captured_sizes
from kvplan_engine.execution.profile_step import ProfilePeak
from kvplan_engine.execution.starting import Started
from kvplan_engine.memory.breakdown import MemoryBreakdown
from kvplan_engine.memory.step_buffers import cuda_buffers
from kvplan_engine.models.counted_model import CountedModel

KIB, MIB, GIB = 1024, 1024**2, 1024**3
_PIECE_BYTES = 2 * MIB  # in which torch's allocator takes memory


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU and who else uses it.

    library_bytes: what the first large step loads. graph_bytes: of a captured step, by its number of tokens.
    others: what other processes hold, by how often memory was looked at. cached_bytes: of the machine's memory, where a
    GPU shares that, what files take that are cached: the driver counts them as used.
    """

    name: str
    total_bytes: int
    context_bytes: int
    library_bytes: int = 150 * MIB
    graph_bytes: Callable[[int], int] = lambda tokens: 2 * MIB + tokens * 3 * KIB
    others: Callable[[int], int] = lambda _: 0
    capability: tuple[int, int] = (9, 0)
    cached_bytes: int = 0


class CardDriver:
    """What torch's driver says of a card, and who has memory of it. num_looks: how often that was asked."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.num_looks = self.tensor_bytes = self.num_opened = 0
        self.is_warm = False

    @property
    def used_bytes(self) -> int:
        own = self.card.context_bytes if self.num_opened else 0
        own += self.card.library_bytes if self.is_warm else 0
        return own + self.tensor_bytes + self.card.others(self.num_looks)

    def look(self, *_: object) -> tuple[int, int]:
        self.num_looks += 1
        return self.available() - self.card.cached_bytes, self.card.total_bytes

    def available(self) -> int:
        """What the system could give, if it gave up what is cached."""
        return self.card.total_bytes - self.used_bytes

    def open(self, *_: object) -> None:
        self.num_opened += 1

    def take(self, owner: object, num_bytes: int) -> Callable[[], None]:
        """For as long as ``owner`` lives, or until what this returns is called."""
        whole = -(-num_bytes // _PIECE_BYTES) * _PIECE_BYTES
        if self.used_bytes + whole > self.card.total_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes / MIB:.2f} MiB.")
        self.tensor_bytes += whole
        return weakref.finalize(owner, self._give_back, whole)

    def _give_back(self, num_bytes: int) -> None:
        self.tensor_bytes -= num_bytes


class _Model(CountedModel):
    """With the buffers that the kernels of a GPU need."""

    def kernel_buffers(self, config: EngineConfig) -> list[Any]:
        return cuda_buffers(config, self.config, holds_few_bits=False)

    def release_workspace(self) -> None:
        """A runner has given its own back."""


class _Pool:
    """Blocks without content."""


class _Runner(CapacityRunner):
    """Takes the memory of a runner's workspace, pool and graphs."""

    def __init__(self, driver: CardDriver, config: EngineConfig, workspace_bytes: int, block_bytes: int) -> None:
        super().__init__(vocab_size=1000, seed=0)
        self._driver, self._config, self._block_bytes = driver, config, block_bytes
        self.workspace = SimpleNamespace(num_bytes=workspace_bytes)
        driver.take(self, workspace_bytes)
        self.kv: _Pool | None = None
        self._give_back: list[Callable[[], None]] = []
        rows = min(config.max_num_seqs, config.max_num_batched_tokens)
        sizes = captured_sizes(rows, config.max_num_batched_tokens, with_prompts=True)
        self.graph_sizes = () if config.enforce_eager else sizes

    def carve_pool(self, num_blocks: int, kv_dtype: str) -> None:
        self.kv = _Pool()
        self._give_back.append(self._driver.take(self.kv, num_blocks * self._block_bytes))

    def drop_pool(self) -> None:
        self.kv = None
        for give_back in self._give_back:
            give_back()
        self._give_back = []

    def capture_graphs(self) -> SimpleNamespace:
        before, _ = self._driver.look()
        for size in self.graph_sizes:
            self._give_back.append(self._driver.take(self, self._driver.card.graph_bytes(size.num_tokens)))
        after, _ = self._driver.look()
        return SimpleNamespace(num_bytes=max(0, before - after))


class _Carver(carving.MemoryCarver):
    driver: CardDriver

    def _make_runner(self, config: EngineConfig, layout: Any, max_model_len: int) -> Any:
        buffers = carving.workspace_buffers(self._model, config, layout, max_model_len)
        return _Runner(self.driver, config, sum(buffer.num_bytes for buffer in buffers), layout.block_bytes)


class _Inside:
    """A worker process within this one: the same messages, as lines of JSON."""

    def __init__(self) -> None:
        self._host = EngineHost()
        self._replies: deque[str] = deque([json.dumps(greeting())])

    def _say(self, message: Mapping[str, Any]) -> None:
        self._replies.append(json.dumps(message))

    def send(self, message: Mapping[str, Any]) -> None:
        self._say(answer(self._host, json.loads(json.dumps(message)), self._say))

    def receive(self, *_: object) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._replies.popleft())
        return found

    def stop(self) -> None:
        if self._host.engine is not None:
            self._host.engine.close()

    kill = stop


def take_card(monkeypatch: pytest.MonkeyPatch, card: Card) -> CardDriver:
    """Let this process, as parent and as worker, find ``card``."""
    driver = CardDriver(card)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    said: dict[str, Any] = {
        "current_device": lambda: 0,
        "empty_cache": lambda: None,
        "mem_get_info": driver.look,
        "get_device_name": lambda *_: card.name,
        "get_device_capability": lambda *_: card.capability,
        "get_device_properties": lambda *_: SimpleNamespace(uuid="ab-cd", is_integrated=card.cached_bytes > 0),
        "is_available": lambda: True,
        "reset_peak_memory_stats": lambda *_: None,
        "max_memory_allocated": lambda *_: 0,
        "max_memory_reserved": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "synchronize": lambda *_: None,
    }
    for name, answered in said.items():
        monkeypatch.setattr(torch.cuda, name, answered)
    monkeypatch.setattr(cuda, "_make_context", driver.open)
    monkeypatch.setattr(cuda, "machine_available_bytes", driver.available)
    monkeypatch.setattr(cuda.CudaDevice, "is_usable", lambda _: True)
    monkeypatch.setattr(cuda, "refuse_unusable_gpu", lambda: None)
    monkeypatch.setattr(answers, "why_no_usable_gpu", lambda: None)
    monkeypatch.setattr(machine_module, "_torch_is_cpu_build", lambda: False)
    monkeypatch.setattr(machine_module, "has_driver", lambda: True)
    monkeypatch.setattr(carving, "measure_profile_step", lambda runner, *_: _largest_step(driver, *_))
    monkeypatch.setattr(engine_module, "start", lambda config, source: _start(driver, config, source))
    monkeypatch.setattr(session, "_starter", lambda *_: _start_inside)
    return driver


def _largest_step(driver: CardDriver, _: EngineConfig, memory: MemoryBreakdown, *__: object) -> ProfilePeak:
    driver.is_warm = True
    return ProfilePeak(memory.activation_bytes, 0, 1e-5)


def _start(driver: CardDriver, config: EngineConfig, source: Any) -> Started:
    device = open_device(config.device, config.device_memory)
    model: Any = _Model(config, source, device)
    with allocating("weights"):
        driver.take(model, model.weight_bytes)
    carver = _Carver(model, device)
    carver.driver = driver
    return Started(device, model, carver)


def _start_inside(_: Path) -> Worker:
    process: Any = _Inside()
    return Worker(process)
