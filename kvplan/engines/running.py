"""A server that runs already (``--engine openai --url``): found, asked what it has, and loaded; nothing is started.

Its settings are its own, so that only loads vary, and nothing is predicted of it: what it tells of itself stands in the
rows, and what it does not tell stays empty.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

from kvplan.catalog.spec import ModelSpec
from kvplan.engines.guards import progress_to
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.kv_cache import components_of
from kvplan.load.client.body import RequestForm
from kvplan.load.run import run_load
from kvplan.load.sending import run_on_loop
from kvplan.load.target import PROBE_SECONDS, Target, find_model, probe_target
from kvplan.load.traffic.plan import TrafficPlan
from kvplan.machine.device import Device, detect_device
from kvplan.metrics.http import ServerAddress
from kvplan.metrics.limits import UNKNOWN_LIMITS, ServerLimits
from kvplan.metrics.reading import CacheConfig, ServerReading
from kvplan.metrics.source import MetricsSource
from kvplan.runs.columns import Row
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.design import roomy_context
from kvplan.sweeps.forecast.pool import EngineModel, PlainLayout, PlainPool
from kvplan.sweeps.forecast.under_load import PreparedTrial
from kvplan.sweeps.hosts import OnEvent, TrialHost
from kvplan.sweeps.rows import SweepIdentity
from kvplan.sweeps.worker.client import TimeLimits
from kvplan.sweeps.worker.protocol import TrialResult
from kvplan.workload.requests import RequestSpec

KEY_VARIABLE: Final = "OPENAI_API_KEY"
"""The environment variable that holds the API key."""
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_SEATS: Final = 256
_STEP_TOKENS: Final = 8192
_NOT_ASKED_FOR: Final = (
    "device_name",
    "node",
    "load_format",
    "weights_origin",
    "model_impl",
    "kv_cache_memory_bytes",
    "quantization",
    "group_size",
    "max_loras",
    "max_lora_rank",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "enable_expert_parallel",
    "num_speculative_tokens",
    "speculative_config",
)
"""Columns that say of other sweeps what was asked for, or where they ran."""
_NOT_PREDICTED: Final = (
    "weights_bytes_predicted",
    "adapter_bytes_predicted",
    "block_bytes_predicted",
    "num_blocks_predicted",
    "kv_cache_tokens_predicted",
    "predicted_status",
    "pred_max_concurrency",
)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server tells of itself; engine: None for one whose metrics are not known here.

    limits: of each of its ``num_engines`` data-parallel engines. cache: of all together.
    """

    engine: str | None
    limits: ServerLimits
    cache: CacheConfig
    num_engines: int = 1

    @staticmethod
    def of(address: ServerAddress, api_key: str | None) -> ServerFacts:
        """KvplanError where nothing answers there."""
        reading, limits = _ask(address, api_key)
        if reading is None:
            return ServerFacts(None, limits, CacheConfig())
        seats = ServerLimits(max_num_seqs=reading.max_num_seqs or reading.num_slots)
        return ServerFacts(reading.engine, limits.filled_from(seats), reading.cache, reading.num_engines)

    def settings(self) -> dict[str, int | float | None]:
        """The settings that it tells, under vLLM's names; None for the others."""
        return {
            "max_num_seqs": self.limits.max_num_seqs,
            "max_model_len": self.limits.max_model_len,
            "max_num_batched_tokens": self.limits.max_num_batched_tokens,
            "block_size": self.cache.block_size,
            "gpu_memory_utilization": self.cache.gpu_memory_utilization,
        }

    def sentence(self) -> str:
        """``vllm 0.32.0: max_num_seqs 256, ...; 8,064 KV tokens``."""
        name = " ".join(filter(None, (self.engine or "an engine without known metrics", self.limits.version)))
        name += f" x {self.num_engines} data-parallel" if self.num_engines > 1 else ""
        told = ", ".join(f"{name} {value:,}" for name, value in self.settings().items() if value is not None)
        tokens = self.cache.kv_cache_size_tokens
        held = f"{tokens:,} KV tokens" if tokens else ""
        return f"{name}: {'; '.join(filter(None, (told, held))) or 'it tells no settings'}"


def _ask(address: ServerAddress, api_key: str | None) -> tuple[ServerReading | None, ServerLimits]:
    with MetricsSource(address.url, api_key) as source:
        try:
            reading = source.read()
        except KvplanError:
            return None, UNKNOWN_LIMITS
        return reading, source.limits(reading.engine)


class RunningServer:
    """A SweptEngine. KvplanError, when it is asked, for an address where no server answers."""

    name = "openai"
    lowered: frozenset[str] = frozenset()
    preloads = False

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._address = ServerAddress.parse(url)
        self._api_key = api_key or os.environ.get(KEY_VARIABLE)

    @cached_property
    def _facts(self) -> ServerFacts:
        find_model(self._address, self._api_key, None)
        return ServerFacts.of(self._address, self._api_key)

    @property
    def version(self) -> str | None:
        return self._facts.limits.version

    @property
    def notices(self) -> tuple[str, ...]:
        return (f"{self._address.url} serves already, {self._facts.sentence()}", "nothing is predicted of it")

    def refuse(self, axes: Collection[str]) -> None:
        axis = next(iter(axes), None)
        if axis is not None:
            hint = "search loads, such as --search max_concurrency --slo 'ttft:500'; or let --engine vllm start it"
            raise UsageError(f"{axis} of a running server cannot be swept.", hint=hint)

    def device(self, memory_bytes: int | None) -> Device:
        """The server's, as far as it tells. Its kind decides how many requests are usual."""
        told = self._facts.limits
        kind = told.device or "cuda"
        if told.device is None and self._address.host in _LOOPBACK:
            kind = detect_device("auto", None, must_be_free=False, by_our_torch=False).kind
        return Device(kind, f"server at {self._address.url}", told.device_memory_bytes or 0, 1)

    def model(self, spec: ModelSpec, device: Device) -> EngineModel:
        return RunningModel(spec, self._facts)

    def host(self, identity: SweepIdentity, spec: ModelSpec, model_path: Path | None, directory: Path) -> TrialHost:
        return RunningHost(self._address, self._api_key, self._facts, identity)


@dataclass(frozen=True, slots=True)
class RunningModel:
    """An EngineModel: room as the server tells it, or for everybody where it does not."""

    spec: ModelSpec
    facts: ServerFacts

    def memory(self, settings: TrialSettings) -> PlainPool:
        cache = CacheSettings(model_dtype=self.spec.dtype, kv_dtype=self.spec.dtype)
        each = sum(part.bytes_per_token for part in components_of(self.spec.layers, cache))
        tokens = self.facts.cache.kv_cache_size_tokens or settings.max_num_seqs * settings.max_model_len
        blocks = tokens // settings.block_size
        return PlainPool(
            outcome="ok",
            dtype=self.spec.dtype,
            weight_bytes=0,
            fixed_bytes=0,
            block_bytes=each * settings.block_size,
            num_blocks=blocks,
            usable_blocks=max(blocks, -(-settings.max_model_len // settings.block_size)),
            kv_cache_tokens=tokens,
            largest_context=settings.max_model_len,
            layout=PlainLayout(float(each)),
        )

    def base_settings(self, requests: Sequence[RequestSpec], max_concurrency: int | None) -> TrialSettings:
        told = {name: value for name, value in self.facts.settings().items() if value is not None}
        usual: dict[str, Any] = {
            "gpu_memory_utilization": 0.9,
            "max_num_seqs": _SEATS,
            "block_size": 16,
            "max_model_len": roomy_context(requests, self.spec.max_position_embeddings),
            "max_num_batched_tokens": _STEP_TOKENS,
        }
        return TrialSettings(**usual | told)

    def default_axes(self, base: TrialSettings) -> Mapping[str, Sequence[float | int | str]]:
        return {}


class RunningHost:
    """A TrialHost: the server stays as it is. KvplanError from the first trial on where it refuses small requests."""

    is_loaded = True

    def __init__(
        self, address: ServerAddress, api_key: str | None, facts: ServerFacts, identity: SweepIdentity
    ) -> None:
        self._address, self._api_key = address, api_key
        self._facts, self._identity = facts, identity

    @cached_property
    def _target(self) -> Target:
        model, longest = find_model(self._address, self._api_key, None)
        form = RequestForm(self._address, "completions", model, self._api_key)
        return run_on_loop(probe_target(form, longest, timeout_seconds=PROBE_SECONDS))

    def run(self, prepared: PreparedTrial, limits: TimeLimits, on_event: OnEvent) -> TrialResult:
        """Load it. A server that answers no longer is a row of failed requests."""
        on_event({"type": "stage", "stage": "serving", "memory_share": None})
        requests, workload = prepared.prediction.requests.requests, prepared.workload
        plan = TrafficPlan(
            workload=workload,
            max_in_flight=workload.max_concurrency,
            has_times=prepared.last_arrival_seconds > 0,
            drawn=requests,
        )
        total = sum(request.num_output_tokens for request in requests)
        run = run_load(
            self._target,
            plan,
            run=f"{self._identity.run_id} {prepared.trial.trial_id}",
            timeout_seconds=limits.serving,
            on_progress=progress_to(on_event, total),
        )
        if run.interrupted:
            raise KeyboardInterrupt
        row = self._told() | run.row(self._identity.slo_seconds) | cast(Row, dict.fromkeys(_NOT_PREDICTED))
        return TrialResult(row, run.series, requests=run.requests(prepared.trial.trial_id))

    def close(self) -> None:
        """It was not started here."""

    def _told(self) -> Row:
        """The server's own settings; what it does not tell is empty, not the value that was planned with."""
        limits = self._facts.limits
        row: dict[str, Any] = (
            dict.fromkeys(_NOT_ASKED_FOR)
            | self._facts.settings()
            | {
                "url": self._address.url,
                "engine": self._facts.engine,
                "device": limits.device,
                "device_memory_bytes": limits.device_memory_bytes,
                "dtype": limits.dtype,
                "engine_version": limits.version,
                "kernels": limits.kernels,
                "kv_cache_tokens": self._facts.cache.kv_cache_size_tokens,
                "num_blocks_total": self._facts.cache.num_blocks,
                "kv_cache_dtype": self._facts.cache.cache_dtype,
                "reused_server": True,
            }
        )
        return cast(Row, row)
