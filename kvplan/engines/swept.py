"""An engine's adapter as a sweep uses it: planned with, and started."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from kvplan.catalog.spec import ModelSpec
from kvplan.engines.host import EngineServerHost, Source, lowered_settings
from kvplan.engines.interface import EngineAdapter, Installation
from kvplan.engines.starter import preload_of
from kvplan.errors import UsageError
from kvplan.machine.device import Device, detect_device
from kvplan.machine.host import available_memory_bytes
from kvplan.runs.trials import SETTING_NAMES
from kvplan.sweeps.forecast.pool import EngineModel
from kvplan.sweeps.hosts import TrialHost
from kvplan.sweeps.rows import SweepIdentity

PRELOAD_NOTICE: Final = "servers are forked from a process that has imported {}; --no-preload starts each anew"
LOWERED_NOTICE: Final = "{} are lowered without a restart; memory stays as for the largest values"


@dataclass(frozen=True)
class AdaptedEngine:
    """A SweptEngine."""

    adapter: EngineAdapter

    @cached_property
    def _installation(self) -> Installation:
        return self.adapter.identify()

    @property
    def name(self) -> str:
        return self.adapter.name

    @property
    def version(self) -> str | None:
        return self._installation.version

    @property
    def notices(self) -> tuple[str, ...]:
        version = self.version or "(version not told before it starts)"
        lines = [f"{self.name} {version} on the {self._installation.device.upper()}", *self._installation.notices]
        if self.preloads:
            lines.append(PRELOAD_NOTICE.format(self.name))
        if self.lowered:
            lines.append(LOWERED_NOTICE.format(" and ".join(sorted(self.lowered))))
        return tuple(lines)

    @property
    def preloads(self) -> bool:
        """Whether servers are forked from a process that has imported the engine."""
        return preload_of(self.adapter) is not None

    @property
    def lowered(self) -> frozenset[str]:
        return lowered_settings(self.adapter)

    def refuse(self, axes: Collection[str]) -> None:
        unknown = next((axis for axis in axes if axis not in self.adapter.axes), None)
        if unknown is not None:
            known = ", ".join(name for name in SETTING_NAMES if name in self.adapter.axes)
            raise UsageError(f"{self.name} has no {unknown} to sweep.", hint=f"it has {known}")
        if self.lowered and self._installation.device != "cpu" and "kv_cache_memory_bytes" not in axes:
            raise UsageError(
                "--reuse-server needs a KV pool of a given size: what is left for it depends on the settings.",
                hint="add --kv-cache-memory-bytes",
            )

    def device(self, memory_bytes: int | None) -> Device:
        kind = self._installation.device
        # A CPU's engine has all that is free; nothing limits it to a share.
        free = available_memory_bytes() if kind == "cpu" else None
        return detect_device(kind, memory_bytes or free, must_be_free=False, by_our_torch=False)

    def model(self, spec: ModelSpec, device: Device) -> EngineModel:
        return self.adapter.model(spec, device)

    def host(self, identity: SweepIdentity, spec: ModelSpec, model_path: Path | None, directory: Path) -> TrialHost:
        return EngineServerHost(self.adapter, identity, Source(spec, model_path, directory))
