"""Prices of one's own: ``--price h100-sxm=2.1`` in the place of the profile's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kvplan.catalog.devices.gpus import GpuPrice, GpuProfile, find_gpu
from kvplan.catalog.devices.prices import parse_price

_OWN = "given with --price"


def parse_prices(texts: Iterable[str]) -> dict[str, float]:
    """``["h100-sxm=2.1"]`` -> US dollars per hour of one GPU, by its id. UsageError for anything else."""
    found = {}
    for text in texts:
        name, usd = parse_price(text)
        found[find_gpu(name).id] = usd
    return found


def with_prices(gpus: Iterable[GpuProfile], own: Mapping[str, float]) -> tuple[GpuProfile, ...]:
    """The profiles, each at its own price where one is given."""
    return tuple(
        replace(gpu, price=GpuPrice(own[gpu.id], date="", source=_OWN)) if gpu.id in own else gpu for gpu in gpus
    )
