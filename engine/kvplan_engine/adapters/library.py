"""Adapters by name: in host memory, and those among them that lie in the slots."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from kvplan_engine.adapters.peft import Adapter, Correction, read_adapter
from kvplan_engine.adapters.sites import Site, sites_of
from kvplan_engine.adapters.step_rows import StepRows
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.device.allocation import allocating
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.lora import LoraWeights
from kvplan_engine.requests.request import AdapterKey, LoRARequest

# Adapters on the device: ``max_loras`` slots, as large as the largest adapter that is allowed.
#
# A smaller adapter, and one that leaves a product alone, has zeros there.


_STANDARD_DEVIATION = 0.02
# Matrices are windows on the same values, so that host memory holds them once. Rows begin a prime apart.
_ROW_STEP = 101
_PLACES = 997


def dummy_adapter(model: ModelDescription, rank: int, dtype: str, seed: int) -> Adapter:
    """An adapter of ``rank`` that corrects every product; the same for the same seed, another one for any other.

    dtype: of the model, by its name.
    """
    generator = torch.Generator().manual_seed(seed)
    sites = sites_of(model)
    longest = max((max(site.num_inputs, *site.segments) for site in sites), default=0)
    values = torch.empty(longest + rank * _ROW_STEP + _PLACES).normal_(0.0, _STANDARD_DEVIATION, generator=generator)
    values = values.to(getattr(torch, dtype))
    corrections = {}
    segments = [(site, segment) for site in sites for segment in range(len(site.segments))]
    for place, (site, segment) in enumerate(segments):
        offset = place * _ROW_STEP % _PLACES
        down = values.as_strided((rank, site.num_inputs), (_ROW_STEP, 1), offset)
        up = values.as_strided((site.segments[segment], rank), (1, _ROW_STEP), offset)
        corrections[site.name, segment] = Correction(down, up)
    digest = hashlib.blake2b(f"dummy adapter of rank {rank}, seed {seed}".encode(), digest_size=16).digest()
    return Adapter(digest, rank, corrections)


@dataclass(frozen=True, slots=True)
class SiteSlots:
    """Slots of one product."""

    site: Site
    weights: LoraWeights

    def put(self, slot: int, adapter: Adapter) -> None:
        """Make ``slot`` correct this product as ``adapter`` does."""
        down, up, most = self.weights.down[slot], self.weights.up[slot], self.weights.rank
        down.zero_()
        up.zero_()
        first = 0
        for segment, outputs in enumerate(self.site.segments):
            correction = adapter.corrections.get((self.site.name, segment))
            if correction is not None:
                rank = correction.down.shape[0]
                down[segment * most : segment * most + rank].copy_(correction.down)
                up[:rank, first : first + outputs].copy_(correction.up.t())
            first += outputs


class AdapterSlots:
    """The slots of all sites. OutOfDeviceMemory(phase="weights") when they do not fit."""

    def __init__(
        self, sites: Sequence[Site], max_loras: int, rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.max_loras = max_loras
        self.num_bytes = max_loras * dtype.itemsize * sum(site.num_elements(rank) for site in sites)
        with allocating("weights", self.num_bytes):
            self.sites: Mapping[str, SiteSlots] = {
                site.name: SiteSlots(site, _zeros(site, max_loras, rank, dtype, device)) for site in sites
            }

    def put(self, slot: int, adapter: Adapter) -> None:
        """Make ``slot`` the one of ``adapter``."""
        for site in self.sites.values():
            site.put(slot, adapter)


def _zeros(site: Site, max_loras: int, rank: int, dtype: torch.dtype, device: torch.device) -> LoraWeights:
    return LoraWeights(
        torch.zeros(max_loras, len(site.segments) * rank, site.num_inputs, dtype=dtype, device=device),
        torch.zeros(max_loras, rank, site.num_outputs, dtype=dtype, device=device),
        site.segments,
    )


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
