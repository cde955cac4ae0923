"""``kvplan serve`` as an engine of a sweep: a real server, so that the life of one runs without another engine."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from kvplan.catalog.spec import ModelSpec
from kvplan.engines.interface import Command, Ending, Failure, Installation, StartedEngine, StartOrder
from kvplan.engines.vllm.model import VllmModel
from kvplan.machine.device import Device
from kvplan.metrics.http import PersistentConnection, ServerAddress
from kvplan.metrics.reading import EngineName, ServerReading
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.forecast.pool import PlainPool

REFUSED_SEATS = 7
"""A max_num_seqs with which this engine does not start."""


@dataclass(frozen=True, slots=True)
class ServeModel(VllmModel):
    """As vLLM's, of whose memory this test wants nothing but a start."""

    def memory(self, settings: TrialSettings) -> PlainPool:
        return VllmModel.memory(self, settings.with_changes(kv_cache_memory_bytes=1 << 28))


@dataclass
class ServeAdapter:
    """An EngineAdapter, which lowers max_num_seqs of a running server where it is asked to."""

    lowered: frozenset[str] = frozenset()
    port: int | None = None

    name: EngineName = "kvplan"
    axes: frozenset[str] = frozenset({"max_num_seqs", "block_size", "max_model_len"})
    health_path: str = "/health"

    def identify(self) -> Installation:
        return Installation("0.1", "cpu")

    def command(self, order: StartOrder) -> Command:
        """The server reads its options from its stdin."""
        settings, self.port = order.settings, order.port
        asked = {
            "model": order.model,
            "port": order.port,
            "served_model_names": [order.served_model_name],
            "settings": {
                "device": "cpu",
                "device_memory": "1MiB" if settings.max_num_seqs == REFUSED_SEATS else "256MiB",
                "load_format": order.load_format,
                "dtype": "float32",
                "max_num_seqs": settings.max_num_seqs,
                "block_size": settings.block_size,
                "max_model_len": settings.max_model_len,
                "max_num_batched_tokens": settings.max_num_batched_tokens,
            },
        }
        file = order.directory / "options.json"
        file.write_text(json.dumps(asked), encoding="utf-8")
        argv = ("sh", "-c", 'exec "$0" -m kvplan_engine.server < "$1"', sys.executable, str(file))
        path = os.pathsep.join(entry for entry in sys.path if entry)
        return Command(argv, {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"})

    def lower(self, directory: Path, settings: TrialSettings) -> None:
        if self.port is None:
            return  # what is written before a start is in its command line
        with PersistentConnection(ServerAddress.parse(f"127.0.0.1:{self.port}")) as connection:
            answer = connection.ask("PATCH", "/v1/runtime_config", {"max_num_seqs": settings.max_num_seqs})
        assert answer.status == 200, answer.text

    def started(self, log: str, reading: ServerReading | None) -> StartedEngine:
        assert reading is not None
        cache = reading.cache
        return StartedEngine("0.1", cache.kv_cache_size_tokens, cache.num_blocks, cache.block_size)

    def failure(self, ending: Ending) -> Failure:
        last = next((line for line in reversed(ending.log.splitlines()) if line.strip()), "")
        return Failure("crash", f"exit code {ending.exit_code} while {ending.stage}: {last}")

    def model(self, spec: ModelSpec, device: Device) -> ServeModel:
        return ServeModel(spec, device, "0.32")
