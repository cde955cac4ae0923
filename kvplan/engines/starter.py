"""Starts the servers of a sweep, forked from a process that has imported the engine where its adapter preloads."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from kvplan.engines.interface import EngineAdapter, Preload, Preloads, StartOrder
from kvplan.engines.server import EngineServer
from kvplan.engines.serving.preload.client import ForkServer
from kvplan.engines.serving.process import environment_with
from kvplan.errors import KvplanError

PRELOAD_LOG: Final = "preload.log"
"""Of the imports, beside the logs of the servers."""


def preload_of(adapter: EngineAdapter) -> Preload | None:
    """What this adapter's servers are forked from; None where each is started."""
    # A fork is watched through pidfd_open, which only Linux has.
    return adapter.preload if isinstance(adapter, Preloads) and hasattr(os, "pidfd_open") else None


class Starter:
    """Imports the engine once, at the first start."""

    def __init__(self, adapter: EngineAdapter) -> None:
        self._adapter = adapter
        self._preload = preload_of(adapter)
        self._forks: ForkServer | None = None

    def start(self, order: StartOrder, log: Path) -> EngineServer:
        """KvplanError if there is no such program."""
        if self._preload is not None and self._forks is None:
            log_of_imports = log.parent / PRELOAD_LOG
            self._forks = ForkServer(self._preload, environment_with(self._preload.environment), log_of_imports)
        if self._forks is not None:
            with contextlib.suppress(KvplanError):  # the imports did not survive, and a start says why
                return EngineServer.start(self._adapter, order, log, self._forks.keeper)
            self.give_up_preload()
        return EngineServer.start(self._adapter, order, log)

    def give_up_preload(self) -> None:
        """Start every server from now on."""
        self.close()
        self._preload = None

    def close(self) -> None:
        """End what was imported; servers stay."""
        if self._forks is not None:
            self._forks.close()
        self._forks = None
