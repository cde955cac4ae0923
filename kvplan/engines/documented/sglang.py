"""SGLang's server in a sweep, by its documentation and by logs that people published; none was run for this.

Options: docs.sglang.io/advanced_features/server_arguments.html. ``gpu_memory_utilization`` is its
``mem_fraction_static``, the share of the GPU for weights and KV pool. Start-up logs are read as ``kvplan explain``
reads them.
"""

from __future__ import annotations

import re
import signal
from typing import Final

from kvplan.catalog.spec import ModelSpec
from kvplan.engines.documented.models import DocumentedEngine, GpuModel, last_error, sglang_pool
from kvplan.engines.interface import Command, Ending, Failure, StartedEngine, StartOrder, option_words
from kvplan.explaining.startup_log import StartupLog, parse_startup_log
from kvplan.machine.device import Device
from kvplan.metrics.reading import ServerReading
from kvplan.runs.statuses import Status
from kvplan.sweeps.forecast.pool import EngineModel

_AFTER_LOADING: Final = "Load weight end"
_READY: Final = "fired up and ready to roll"
_NO_POOL: Final = re.compile(
    r"Not enough memory\. Please try(?: to)? increas\w+ --mem-fraction-static"
    r"|Loaded weights leave no GPU memory for the KV cache"
)
_TOO_LONG: Final = re.compile(r"--context-length|derived context[ _]length")


class Sglang(DocumentedEngine):
    """``python -m sglang.launch_server``."""

    name = "sglang"
    title = "SGLang"
    package = "sglang"
    axes = frozenset(
        {
            *("gpu_memory_utilization", "max_num_seqs", "max_model_len", "max_num_batched_tokens"),
            *("dtype", "kv_cache_dtype"),
        }
    )

    def command(self, order: StartOrder) -> Command:
        """``python -m sglang.launch_server``, every setting under SGLang's own name."""
        settings = order.settings
        options: dict[str, str] = {
            "model-path": order.model,
            "host": "127.0.0.1",
            "port": str(order.port),
            "served-model-name": order.served_model_name,
            "context-length": str(settings.max_model_len),
            "max-running-requests": str(settings.max_num_seqs),
            "chunked-prefill-size": str(settings.max_num_batched_tokens),
            "mem-fraction-static": f"{settings.gpu_memory_utilization:g}",
            "random-seed": str(order.seed),
            "enable-metrics": "",
        }
        optional = {
            "dtype": settings.dtype,
            "kv-cache-dtype": settings.kv_cache_dtype,
            "load-format": order.load_format,
        }
        options |= {name: value for name, value in optional.items() if value != "auto"}
        if settings.enable_prefix_caching is False:
            options["disable-radix-cache"] = ""
        words = tuple(self.command_words) or (self.python, "-m", "sglang.launch_server")
        return Command((*words, *option_words(options | dict(self.given))))

    def started(self, log: str, reading: ServerReading | None) -> StartedEngine:
        """The pools as the log has them, the tokens by the metrics page where the log does not say."""
        found = parse_startup_log(log)
        cache = reading.cache if reading is not None else None
        told = found.settings
        resolved = {"max_num_seqs": told.max_num_seqs, "max_model_len": told.max_model_len}
        return StartedEngine(
            version=found.version,
            kv_cache_tokens=found.kv_cache_tokens or (cache.kv_cache_size_tokens if cache else None),
            block_size=cache.block_size if cache else None,
            kv_pool_bytes=found.memory.kv_pool_bytes,
            weights_bytes=found.memory.weight_bytes,
            graph_bytes=found.memory.graph_bytes,
            resolved={name: value for name, value in resolved.items() if value is not None},
        )

    def failure(self, ending: Ending) -> Failure:
        """Classify the failure by its own sentence for too small a pool, and torch's for memory that ran out."""
        log = ending.log
        found = parse_startup_log(log)
        tried, free = found.memory.tried_bytes, found.memory.free_bytes
        if _NO_POOL.search(log):
            sentence = "Nothing is left for the KV pool beside the weights. Raise gpu_memory_utilization."
            return Failure("oom_kv_init", sentence, "kv_init")
        if "out of memory" in log:
            status, phase, cause = _phase(found, log, ending)
            return Failure(status, cause, phase, oom_requested_bytes=tried, oom_free_bytes=free)
        last, is_killed = last_error(ending), ending.out_of_host_memory or ending.exit_code == -signal.SIGKILL
        if not is_killed and _TOO_LONG.search(last):
            error = f"SGLang ended: {last}. Lower max_model_len."
            return Failure("rejected_ctx", error, context_limited_by="model" if "derived" in last else None)
        return self.crash(ending)

    def model(self, spec: ModelSpec, device: Device) -> EngineModel:
        return GpuModel(spec, device, sglang_pool, block_size=1)


def _phase(found: StartupLog, log: str, ending: Ending) -> tuple[Status, str, str]:
    """Status, oom_phase and sentence of memory that ran out, by what had been printed by then."""
    if ending.stage == "serving" or _READY in log:
        return "oom_runtime", "runtime", "Memory ran out while serving. Lower gpu_memory_utilization."
    if _AFTER_LOADING not in log:
        return "oom_weights", "weights", "The weights do not fit. Take a smaller quantization, or more GPUs."
    if found.phase == "capturing":
        sentence = "Memory ran out while CUDA graphs were captured. Lower gpu_memory_utilization."
        return "oom_kv_init", "graph_capture", sentence
    return "oom_kv_init", "kv_init", "Memory ran out beside the KV pool. Lower gpu_memory_utilization."
