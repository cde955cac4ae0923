"""Prices of one's own: ``--price h100-sxm=2.1`` in the place of the profile's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kvplan.catalog.devices.gpus import GpuPrice, GpuProfile, find_gpu
from kvplan.errors import UsageError

_OWN = "given with --price"


def parse_prices(texts: Iterable[str]) -> dict[str, float]:
    """``["h100-sxm=2.1"]`` -> US dollars per hour of one GPU, by its id. UsageError for anything else."""
    found = {}
    for text in texts:
        name, equals, amount = text.partition("=")
        try:
            usd = float(amount.strip().removeprefix("$"))
        except ValueError:
            usd = -1.0
        if not equals or not 0 <= usd < float("inf"):
            raise UsageError(f"--price '{text}' is not NAME=USD_PER_HOUR.", hint="for example --price h100-sxm=2.1")
        found[find_gpu(name.strip()).id] = usd
    return found


def with_prices(gpus: Iterable[GpuProfile], own: Mapping[str, float]) -> tuple[GpuProfile, ...]:
    """The profiles, each at its own price where one is given."""
    return tuple(
        replace(gpu, price=GpuPrice(own[gpu.id], date="", source=_OWN)) if gpu.id in own else gpu for gpu in gpus
    )
