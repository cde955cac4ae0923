"""Adapters by name: in host memory, and those among them that lie in the slots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

import torch

from kvplan_engine.adapters.peft import Adapter, read_adapter
from kvplan_engine.adapters.slots import AdapterSlots
from kvplan_engine.adapters.step_rows import StepRows
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError
from kvplan_engine.requests.adapter import AdapterKey, LoRARequest


class AdapterLibrary:
    """Up to ``max_held`` adapters in host memory, up to ``slots.max_loras`` of them on the device.

    The least recently used ones make room; those of unfinished requests stay. What was read stays as it is, whatever
    lies in the directory later, until ``forget``.
    """

    def __init__(
        self, model: ModelDescription, slots: AdapterSlots, max_rank: int, max_held: int, device: torch.device
    ) -> None:
        self.step = StepRows(device)
        self._model, self._slots = model, slots
        self._max_rank, self._max_held = max_rank, max_held
        self._held: OrderedDict[LoRARequest, tuple[AdapterKey, Adapter]] = OrderedDict()
        self._slot_of: OrderedDict[AdapterKey, int] = OrderedDict()  # least recently used first

    @property
    def names(self) -> list[str]:
        """Names of the adapters in host memory."""
        return [request.name for request in self._held]

    def key_of(self, request: LoRARequest, in_use: Collection[AdapterKey]) -> AdapterKey:
        """The adapter that ``request`` names, read now if it is not held. in_use: those of unfinished requests.

        EngineError where it cannot be read, or there is no room for it.
        """
        if request not in self._held:
            self.hold(request, read_adapter(request.path, self._model, self._max_rank), in_use)
        self._held.move_to_end(request)
        return self._held[request][0]

    def hold(self, request: LoRARequest, adapter: Adapter, in_use: Collection[AdapterKey]) -> None:
        """Let ``request`` mean ``adapter``, whatever its path holds. EngineError where there is no room for it."""
        if request not in self._held:
            self._make_room(in_use)
        self._held[request] = AdapterKey(request.name, adapter.digest), adapter

    def _make_room(self, in_use: Collection[AdapterKey]) -> None:
        if len(self._held) < self._max_held:
            return
        oldest = next((request for request, (key, _) in self._held.items() if key not in in_use), None)
        if oldest is None:
            raise EngineError(
                f"all {self._max_held} adapters in host memory are in use.", hint="raise max_cpu_loras, or try again"
            )
        del self._held[oldest]

    def forget(self, name: str, in_use: Collection[AdapterKey]) -> None:
        """Drop the adapters called ``name``. EngineError where none is held, or one has unfinished requests."""
        found = {request: key for request, (key, _) in self._held.items() if request.name == name}
        if not found:
            raise EngineError(f"no adapter is called '{name}'.", hint=f"loaded: {', '.join(self.names) or 'none'}")
        if any(key in in_use for key in found.values()):
            raise EngineError(f"requests of adapter '{name}' are unfinished.", hint="try again when they are done")
        for request in found:
            del self._held[request]

    def begin_step(self, keys: Sequence[AdapterKey | None], counts: Sequence[int], is_sampled: Sequence[bool]) -> None:
        """Let the step's products be corrected. keys: of each sequence; the others: see ``StepRows.fill``."""
        wanted = {key for key in keys if key is not None}
        if not wanted:
            self.step.clear()
            return
        for key in wanted & self._slot_of.keys():
            self._slot_of.move_to_end(key)
        for key in wanted - self._slot_of.keys():
            self._bring(key)
        self.step.fill([-1 if key is None else self._slot_of[key] for key in keys], counts, is_sampled)

    def _bring(self, key: AdapterKey) -> None:
        """Into a free slot, or that of the least recently used."""
        free = set(range(self._slots.max_loras)) - set(self._slot_of.values())
        slot = min(free) if free else self._slot_of.popitem(last=False)[1]
        self._slots.put(slot, next(adapter for held, adapter in self._held.values() if held == key))
        self._slot_of[key] = slot
