"""TensorRT-LLM's server in a sweep, by its documentation and by logs that people published; none was run for this.

Options: nvidia.github.io/TensorRT-LLM/commands/trtllm-serve (1.x, PyTorch backend); what has no option of its own
stands in the file of ``--extra_llm_api_options``. ``gpu_memory_utilization`` is its ``free_gpu_memory_fraction``: the
share for the KV pool of what is free beside the model. It calls its model by the last part of its path.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from kvplan.catalog.spec import ModelSpec
from kvplan.engines.documented.models import DocumentedEngine, GpuModel, trtllm_pool
from kvplan.engines.interface import Command, Ending, Failure, StartedEngine, StartOrder
from kvplan.estimate.trtllm import DEFAULT_BLOCK
from kvplan.machine.device import Device
from kvplan.metrics.reading import ServerReading
from kvplan.runs.statuses import Status
from kvplan.sweeps.forecast.pool import EngineModel
from kvplan.units import GIB

_VERSION: Final = re.compile(r"TensorRT[- ]LLM version: (\S+)")
_POOL: Final = re.compile(r"Allocated ([\d.]+) GiB for max tokens in paged KV cache \((\d+)\)")
_BLOCKS: Final = re.compile(r"tokens per block=(\d+), primary blocks=(\d+)")
_BLOCK_SIZE: Final = re.compile(r"Number of tokens per block: (\d+)")
_LENGTH: Final = re.compile(r"max_seq_len=(\d+), max_num_requests=(\d+)")
_COMPONENT: Final = re.compile(r"The following component could not be created: (.+)")
_FREE: Final = re.compile(r"Free GPU memory before component creation attempt \(GiB\): ([\d.]+)")
_TRIED: Final = re.compile(r"Tried to allocate ([\d.]+) ([KMG])iB")
_GRAPHS: Final = re.compile(r"cuda graph", re.IGNORECASE)
_UNIT_BYTES: Final = {"K": 2**10, "M": 2**20, "G": 2**30}
_CONFIG_FILE: Final = "trtllm.json"


class TrtLlm(DocumentedEngine):
    """``trtllm-serve``, which stands beside the interpreter."""

    name = "trtllm"
    title = "TensorRT-LLM"
    package = "tensorrt_llm"
    axes = frozenset(
        {
            *("gpu_memory_utilization", "max_num_seqs", "block_size", "max_model_len", "max_num_batched_tokens"),
            "kv_cache_dtype",
        }
    )

    def command(self, order: StartOrder) -> Command:
        """``trtllm-serve`` with a file for the KV cache and the statistics; JSON is YAML."""
        settings = order.settings
        file = order.directory / _CONFIG_FILE
        file.write_text(json.dumps(_configuration(order), indent=2) + "\n", encoding="utf-8")
        words = tuple(self.command_words) or (str(Path(self.python).parent / "trtllm-serve"),)
        options = {
            "host": "127.0.0.1",
            "port": str(order.port),
            "backend": "pytorch",
            "max_batch_size": str(settings.max_num_seqs),
            "max_num_tokens": str(settings.max_num_batched_tokens),
            "max_seq_len": str(settings.max_model_len),
            "extra_llm_api_options": str(file),
        } | {name.replace("-", "_"): value for name, value in self.given.items()}
        named = (
            word for name, value in options.items() for word in ((f"--{name}", value) if value else (f"--{name}",))
        )
        return Command((*words, order.model, *named))

    def started(self, log: str, reading: ServerReading | None) -> StartedEngine:
        """The pool that it allocated last: an earlier one is for measuring the largest step."""
        pools, blocks, lengths = _POOL.findall(log), _BLOCKS.findall(log), _LENGTH.findall(log)
        cache = reading.cache if reading is not None else None
        sizes = _BLOCK_SIZE.findall(log)
        version = _VERSION.search(log)
        resolved = {"max_model_len": int(lengths[-1][0]), "max_num_seqs": int(lengths[-1][1])} if lengths else {}
        return StartedEngine(
            version=version[1] if version else None,
            kv_cache_tokens=int(pools[-1][1]) if pools else (cache.kv_cache_size_tokens if cache else None),
            num_blocks=int(blocks[-1][1]) if blocks else (cache.num_blocks if cache else None),
            block_size=int(sizes[-1]) if sizes else (cache.block_size if cache else None),
            kv_pool_bytes=round(float(pools[-1][0]) * GIB) if pools else None,
            resolved=resolved,
        )

    def failure(self, ending: Ending) -> Failure:
        """Classify the failure by its own account of the component that could not be created."""
        log = ending.log
        tried, free = _TRIED.search(log), _FREE.search(log)
        requested = round(float(tried[1]) * _UNIT_BYTES[tried[2]]) if tried else None
        left = round(float(free[1]) * GIB) if free else None
        component = _COMPONENT.search(log)
        if component is not None:
            status, phase, sentence = _of_component(component[1].strip())
            return Failure(status, sentence, phase, oom_requested_bytes=requested, oom_free_bytes=left)
        if "out of memory" in log:
            at_start = ending.stage == "starting"
            if at_start and _POOL.search(log):
                captures = _GRAPHS.search(log) is not None
                when = "while CUDA graphs were captured" if captures else "beside the KV cache"
                sentence = f"Memory ran out {when}. Lower gpu_memory_utilization."
                phase = "graph_capture" if captures else "kv_init"
                return Failure("oom_kv_init", sentence, phase, oom_requested_bytes=requested)
            status, phase = ("oom_weights", "weights") if at_start else ("oom_runtime", "runtime")
            when = "before the KV cache was created" if at_start else "while serving"
            return Failure(status, f"Memory ran out {when}.", phase, oom_requested_bytes=requested)
        return self.crash(ending)

    def model(self, spec: ModelSpec, device: Device) -> EngineModel:
        return GpuModel(spec, device, trtllm_pool, block_size=DEFAULT_BLOCK)


def _configuration(order: StartOrder) -> dict[str, Any]:
    """The file of ``--extra_llm_api_options``."""
    settings = order.settings
    pool: dict[str, Any] = {
        "free_gpu_memory_fraction": settings.gpu_memory_utilization,
        "tokens_per_block": settings.block_size,
        "enable_block_reuse": settings.enable_prefix_caching is not False,
    }
    if settings.kv_cache_dtype != "auto":
        pool["dtype"] = "fp8" if settings.kv_cache_dtype.startswith("fp8") else settings.kv_cache_dtype
    document: dict[str, Any] = {"kv_cache_config": pool, "enable_iter_perf_stats": True, "enable_chunked_prefill": True}
    if order.load_format == "dummy":
        document["load_format"] = "dummy"
    return document


def _of_component(name: str) -> tuple[Status, str, str]:
    """Status, oom_phase and sentence by the component's name (py_executor_creator.py)."""
    if name.startswith(("Model", "Draft model")) and "created during usage" not in name:
        return "oom_weights", "weights", "The model does not fit. Lower max_num_batched_tokens, or use more GPUs."
    if name.casefold().startswith("initial kv cache") or "Additional executor resources" in name:
        sentence = f"No memory was left for: {name}. Lower max_num_batched_tokens."
        return "oom_kv_init", "kv_init", sentence
    if name == "KV cache":
        return "oom_kv_init", "kv_init", "The KV cache does not fit. Lower gpu_memory_utilization."
    return "oom_kv_init", "kv_init", f"No memory was left for: {name}. Lower max_model_len or max_num_seqs."
