"""Random adapters from the model's shapes alone: what adapters cost does not depend on their values."""

from __future__ import annotations

import hashlib

import torch

from kvplan_engine.adapters.peft import Adapter, Correction
from kvplan_engine.adapters.sites import sites_of
from kvplan_engine.description.model import ModelDescription

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
