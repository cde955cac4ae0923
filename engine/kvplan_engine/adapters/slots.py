"""Adapters on the device: ``max_loras`` slots, as large as the largest adapter that is allowed.

A smaller adapter, and one that leaves a product alone, has zeros there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kvplan_engine.adapters.peft import Adapter
from kvplan_engine.adapters.sites import Site
from kvplan_engine.device.allocation import allocating
from kvplan_engine.kernels.lora import LoraWeights


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
