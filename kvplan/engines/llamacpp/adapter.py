"""llama-server in a sweep: slots for ``max_num_seqs``, their context for ``max_model_len``."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.engines.interface import Command, Ending, Failure, Installation, StartedEngine, StartOrder, option_words
from kvplan.engines.llamacpp.log import classify, read_start
from kvplan.engines.llamacpp.options import Options, server_options, settings_of, user_options
from kvplan.errors import KvplanError
from kvplan.estimate.llamacpp import DEFAULT_BATCH, DEFAULT_SLOTS, LlamaCppPrediction, predict_llamacpp
from kvplan.machine.device import Device
from kvplan.metrics.reading import EngineName, ServerReading
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.design import roomy_context
from kvplan.sweeps.forecast.pool import EngineModel, PlainLayout, PlainPool
from kvplan.workload.requests import RequestSpec

_WHOLE_MEMORY: Final = 1.0
_CELL_TOKENS: Final = 1
_SEATS_FACTORS: Final = (1, 2, 4)
_VERSION: Final = re.compile(r"version: (\S+)")
_DEVICE: Final = re.compile(r"^\s*(?:CUDA|ROCm|Vulkan|Metal|SYCL)\d*:", re.MULTILINE)
_ANSWER_SECONDS: Final = 60.0
_CACHE_DTYPES: Final[Mapping[str, str]] = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class LlamaCpp:
    """``command``: how to run it, such as ``("/opt/llama.cpp/llama-server",)``; ``given``: ``--engine-arg``."""

    command_words: Sequence[str] = ("llama-server",)
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> EngineName:
        return "llamacpp"

    @property
    def axes(self) -> frozenset[str]:
        pool = {"kv_cache_memory_bytes", "kv_cache_dtype"}
        return frozenset(pool | {"max_num_seqs", "max_model_len", "max_num_batched_tokens"})

    @property
    def health_path(self) -> str:
        return "/health"

    def identify(self) -> Installation:
        """``--version`` and ``--list-devices``. KvplanError where the command cannot be run."""
        is_on_gpu = _DEVICE.search(self._ask("--list-devices")) is not None
        return Installation(self._version, "cuda" if is_on_gpu else "cpu")

    def command(self, order: StartOrder) -> Command:
        """Words of the command line; the address and the name are the sweep's."""
        if order.load_format == "dummy":
            raise KvplanError("llama.cpp has no random weights.", hint="leave --load-format out, and give a .gguf file")
        own = ("--model", order.model, "--host", "127.0.0.1", "--port", str(order.port))
        spec = resolve_model(order.model) if order.settings.kv_cache_memory_bytes is not None else None
        words = option_words(server_options(order.settings, self._options, spec))
        return Command((*self.command_words, *own, "--alias", order.served_model_name, *words))

    def started(self, log: str, reading: ServerReading | None) -> StartedEngine:
        """Say what started, by the log; slots and their length by ``/slots`` where it does not say them."""
        found = read_start(log)
        slots = found.num_slots or (reading.num_slots if reading else None)
        slot_tokens = found.slot_tokens or (reading.slot_tokens if reading else None)
        tokens = found.kv_cache_tokens
        key_type = found.caches[0].key_type if found.caches else None
        told = {"max_num_seqs": slots, "max_model_len": slot_tokens}
        return StartedEngine(
            version=self._version,
            kv_cache_tokens=tokens,
            num_blocks=tokens,
            block_size=1,
            kv_pool_bytes=found.kv_pool_bytes,
            weights_bytes=found.weight_bytes,
            activation_bytes=found.compute_bytes,
            overhead_bytes=found.output_bytes,
            max_concurrency=tokens / slot_tokens if tokens and slot_tokens else None,
            kv_cache_dtype=None if key_type is None else _CACHE_DTYPES.get(key_type, key_type),
            resolved={name: value for name, value in told.items() if value is not None},
        )

    def failure(self, ending: Ending) -> Failure:
        """See kvplan.engines.llamacpp.log."""
        return classify(ending)

    def model(self, spec: ModelSpec, device: Device) -> EngineModel:
        return LlamaCppModel(spec, device, self._options)

    @cached_property
    def _version(self) -> str | None:
        found = _VERSION.search(self._ask("--version"))
        return found[1] if found else None

    @cached_property
    def _options(self) -> Options:
        return user_options(self.given)

    def _ask(self, option: str) -> str:
        words = [*self.command_words, option]
        try:
            answer = subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = getattr(error, "strerror", None) or "it does not answer"
            hint = "--engine-command PATH/llama-server"
            raise KvplanError(f"'{words[0]}' cannot be run ({reason}).", hint=hint) from error
        return answer.stdout + answer.stderr


@dataclass(frozen=True, slots=True)
class LlamaCppModel:
    """An EngineModel. given: options of the user, which go before those of the settings."""

    spec: ModelSpec
    device: Device
    given: Mapping[str, str]

    def memory(self, settings: TrialSettings) -> PlainPool:
        """Cells and bytes as kvplan.estimate.llamacpp has them; all of it must fit the device."""
        found = predict_llamacpp(self.spec, settings_of(server_options(settings, self.given, self.spec)))
        return PlainPool(
            outcome=self._outcome(found, settings),
            dtype=self.spec.dtype,
            weight_bytes=found.weight_bytes,
            fixed_bytes=found.fixed_bytes,
            block_bytes=found.bytes_per_token,
            num_blocks=found.kv_cache_tokens,
            usable_blocks=found.kv_cache_tokens // settings.block_size,
            kv_cache_tokens=found.kv_cache_tokens,
            largest_context=found.slot_tokens,
            layout=PlainLayout(float(found.bytes_per_token)),
        )

    def base_settings(self, requests: Sequence[RequestSpec], max_concurrency: int | None) -> TrialSettings:
        """Its own defaults, with slots as long as the requests need several times over."""
        return TrialSettings(
            gpu_memory_utilization=_WHOLE_MEMORY,
            max_num_seqs=DEFAULT_SLOTS,
            block_size=_CELL_TOKENS,
            max_model_len=roomy_context(requests, self.spec.max_position_embeddings),
            max_num_batched_tokens=DEFAULT_BATCH,
        )

    def default_axes(self, base: TrialSettings) -> Mapping[str, Sequence[float | int | str]]:
        """Slots, from one to four times the default."""
        return {"max_num_seqs": (1, *(factor * base.max_num_seqs for factor in _SEATS_FACTORS))}

    def _outcome(self, found: LlamaCppPrediction, settings: TrialSettings) -> str:
        """A slot that is shorter than max_model_len refuses the longest requests, though the server starts."""
        if found.weight_bytes > self.device.memory_bytes:
            return "oom_weights"
        if found.fixed_bytes + found.kv_cache_bytes > self.device.memory_bytes:
            return "oom_kv_init"
        return "ok" if found.slot_tokens >= settings.max_model_len else "rejected_ctx"
