"""What helps an engine that stopped, or wastes what it has, read from its own words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.estimate.parallel import ParallelLayout
from kvplan.explaining.patterns import KILLED, WITHOUT_NVML
from kvplan.explaining.startup_log import LogMemory, Phase, StartupLog
from kvplan.settings import ServingSettings
from kvplan.units import GIB, format_bytes

_OTHERS_FROM_BYTES: Final = GIB
"""More than this beside the process, and other programs are named: a driver's context is smaller."""


@dataclass(frozen=True, slots=True)
class SuggestedChange:
    """Something to change, with what it would give: tokens of KV cache more than now (None: unknown)."""

    sentence: str
    gained_tokens: int | None = None


def ways_out(log: StartupLog, gpus: Sequence[GpuProfile] = ()) -> Iterator[SuggestedChange]:
    """Changes that the log itself suggests; those that a prediction suggests come on top. ``gpus``: it may be of."""
    pool = log.memory.kv_pool_bytes
    if log.has_given_pool and pool is not None:
        yield SuggestedChange(
            f"for more KV cache raise --kv-cache-memory-bytes (now {format_bytes(pool)}), or leave it out: "
            "--gpu-memory-utilization has no effect beside it"
        )
    if log.failure is not None:
        yield from _too_long(log, gpus)
        yield from _too_full(log, log.failure, gpus)
        yield from _sglang_pools(log.failure)
        yield from _out_of_memory(log)
    elif log.crash is None:
        rows, concurrency = log.settings.max_num_seqs, log.max_concurrency
        if rows and concurrency and concurrency > 2 * rows:
            yield SuggestedChange(f"the pool holds {concurrency:.0f} sequences but --max-num-seqs is {rows}: raise it")
    elif KILLED.search(log.crash):
        yield SuggestedChange(
            "the operating system ended a process, as it does where the host is out of memory: give the container more "
            "of it, or load with fewer processes at once"
        )


def _too_long(log: StartupLog, gpus: Sequence[GpuProfile]) -> Iterator[SuggestedChange]:
    """What helps where one request, or all that may run at once, do not fit."""
    memory = log.memory
    if log.largest_max_model_len:
        yield SuggestedChange(
            f"lower --max-model-len to {log.largest_max_model_len} or less, or make room for the cache"
        )
    elif log.kv_cache_tokens and "max seq len" in (log.failure or ""):
        yield SuggestedChange(f"lower --max-model-len to {log.kv_cache_tokens} or less, or make room for the cache")
    if memory.needed_kv_bytes and memory.kv_pool_bytes is not None:
        missing = memory.needed_kv_bytes - memory.kv_pool_bytes
        yield SuggestedChange(
            f"one request of the maximum length needs {format_bytes(missing)} more KV cache on each GPU"
            + _raised_by(log, missing, gpus)
        )
    if log.num_state_blocks:
        yield SuggestedChange(
            f"set --max-num-seqs {log.num_state_blocks}: each running sequence takes a block of states, and CUDA "
            f"graphs are captured for all of them; or {_more_memory(log, gpus)}use more GPUs"
        )


def _too_full(log: StartupLog, failure: str, gpus: Sequence[GpuProfile]) -> Iterator[SuggestedChange]:
    """What helps where others hold the GPU, or nothing is left of the engine's share."""
    memory = log.memory
    if "Free memory on device" in failure and memory.free_bytes and memory.total_bytes:
        yield SuggestedChange(
            f"other programs use {format_bytes(max(memory.total_bytes - memory.free_bytes, 0))} of the GPU: stop them"
            + or_lower_to(memory.free_bytes / memory.total_bytes)
        )
    if memory.kv_pool_bytes is not None and memory.kv_pool_bytes <= 0:
        yield SuggestedChange(f"{format_bytes(-memory.kv_pool_bytes)} more is needed before there is any KV cache")
    if "No available memory" in failure or "Not enough memory" in failure:
        sentence = "lower --max-num-seqs or --max-num-batched-tokens, or use more GPUs"
        share = log.settings.gpu_memory_utilization
        if share is None or share < _MOST_USEFUL_SHARE:
            sentence = f"raise --gpu-memory-utilization if nothing else uses the GPU, {sentence}"
        yield SuggestedChange(sentence)
    if "Cannot auto-fit" in failure:
        more = _more_memory(log, gpus)
        yield SuggestedChange(f"{more}use more GPUs, or a checkpoint with fewer bits per weight: no token fits")
    if "Error in memory profiling" in failure:
        yield SuggestedChange(
            "another program gave memory back while vLLM measured: start vLLM when the others are up, or give it a GPU "
            "of its own"
        )
    if "Externally held weights" in failure or "multimodal GPU decoding" in failure:
        yield SuggestedChange(f"{_more_memory(log, gpus)}leave less of the GPU to what is held outside the engine")
    if "leave no GPU memory" in failure:
        yield SuggestedChange(_beside_the_weights(log.least_static_fraction))


_MOST_USEFUL_SHARE: Final = 0.95
"""What vLLM does not see (its own context, fragments, other processes) must fit into the rest."""


_MOST_OF_SHARED_MEMORY: Final = 0.9
"""Of memory that a GPU shares with its host, which takes a part: people serve DGX Sparks with 0.7 to 0.9."""


def reachable_share(memory: LogMemory, gpus: Sequence[GpuProfile] = ()) -> float:
    """The largest --gpu-memory-utilization that is worth a try: vLLM refuses a share that is not free at the start."""
    if memory.free_bytes is None or not memory.total_bytes:
        return _MOST_OF_SHARED_MEMORY if any(gpu.unified_memory for gpu in gpus) else _MOST_USEFUL_SHARE
    return min(_MOST_USEFUL_SHARE, int(memory.free_bytes / memory.total_bytes * 100) / 100)


def _raised_by(log: StartupLog, missing: int, gpus: Sequence[GpuProfile]) -> str:
    """``: raise --gpu-memory-utilization to 0.82``; nothing where that is not to be had."""
    share, most = log.settings.gpu_memory_utilization, reachable_share(log.memory, gpus)
    totals = [log.memory.total_bytes] if log.memory.total_bytes else [gpu.memory_bytes for gpu in gpus]
    if log.has_given_pool:
        return ": raise --kv-cache-memory-bytes by that"
    if share is None or not totals:
        return ": raise --gpu-memory-utilization if it is below what is free"
    raised = math.ceil((share + missing / min(totals)) * 100) / 100
    return f": raise --gpu-memory-utilization to {raised:g}" if raised <= most else ""


def _more_memory(log: StartupLog, gpus: Sequence[GpuProfile]) -> str:
    """``raise --gpu-memory-utilization, or ``; nothing where that is no way out."""
    share = log.settings.gpu_memory_utilization
    if log.has_given_pool or (share is not None and share >= reachable_share(log.memory, gpus)):
        return ""
    return "raise --gpu-memory-utilization, or "


def more_gpus(now: ServingSettings, wider: ServingSettings) -> str:
    """``use 4 GPUs in all instead of 2: --tensor-parallel-size 4``."""
    count, used = (ParallelLayout.of(each).num_gpus for each in (wider, now))
    return f"use {count} GPUs in all instead of {used}: --tensor-parallel-size {wider.tensor_parallel_size}"


def or_lower_to(share: float) -> str:
    """``, or lower --gpu-memory-utilization to 0.85``; nothing where there is no such share."""
    rounded = int(share * 100) / 100
    return f", or lower --gpu-memory-utilization to {rounded}" if 0 < rounded < 1 else ""


def _sglang_pools(failure: str) -> Iterator[SuggestedChange]:
    """What makes room for the pools that SGLang could not set aside."""
    if "state cache" in failure:
        yield SuggestedChange(
            "lower --max-num-seqs, raise --gpu-memory-utilization, draft fewer tokens, or use more GPUs: the states of "
            "recurrent layers have no room"
        )
    if "leaves no room" in failure:
        yield SuggestedChange(
            "lower --max-num-seqs or raise --gpu-memory-utilization: the windows' pool leaves nothing to the layers "
            "that keep every token"
        )
    if "ONE worst-case request" in failure:
        yield SuggestedChange(
            "raise --gpu-memory-utilization or lower --max-model-len: not one request of that length fits"
        )
    if "memory capacity is unbalanced" in failure:
        yield SuggestedChange("other programs use some of the GPUs: stop them")


def _beside_the_weights(least: float | None) -> str:
    """What makes room in SGLang where the weights take the whole static share. least: a share that is too small."""
    if least is not None and least < _WHOLE_GPU:
        return f"raise --gpu-memory-utilization above {least}, by what the KV cache is to have"
    return (
        "the weights take all of the GPU, at any --gpu-memory-utilization: use more GPUs (--tensor-parallel-size) or a "
        "checkpoint with fewer bits per weight"
    )


_WHOLE_GPU: Final = 0.99
_BY_PHASE: Final[dict[Phase | None, str]] = {
    "loading": "the weights do not fit in what was free: use more GPUs (--tensor-parallel-size) or a checkpoint "
    "with fewer bits per weight; another --gpu-memory-utilization changes nothing here",
    "profiling": "the largest step does not fit beside the weights: lower --max-num-batched-tokens or --max-num-seqs, "
    "or use more GPUs",
    "vision": "the vision encoder's largest input does not fit beside the weights: lower --limit-mm-per-prompt or the "
    "pictures' size (--mm-processor-kwargs), start without trying it (--skip-mm-profiling), leave the tower out "
    "(--language-model-only), or use more GPUs",
    "carving": "the KV cache does not fit in what is left: lower --gpu-memory-utilization",
    "capturing": "CUDA graphs need memory beside the KV cache: lower --gpu-memory-utilization or --max-num-seqs, or "
    "do without graphs (--enforce-eager)",
    "warming up": "the sampler's logits do not fit beside the KV cache: lower --max-num-seqs or "
    "--gpu-memory-utilization",
    "serving": "a step needed more than was left beside the KV cache: lower --gpu-memory-utilization or "
    "--max-num-batched-tokens",
    None: "while loading: use more GPUs or fewer bits per weight; later: lower --gpu-memory-utilization, "
    "--max-num-seqs or --max-num-batched-tokens",
}
"""What helps, by what the engine was doing."""


_BY_ENCODER: Final = (
    "{tried} in one piece is more than the whole GPU has: it is the largest picture or video that the vision encoder "
    "is tried with. Start without trying it (--skip-mm-profiling), or allow fewer and smaller ones "
    "(--limit-mm-per-prompt)"
)
_BY_STEP: Final = (
    "{tried} in one piece is more than the whole GPU has, at any --gpu-memory-utilization. Where the model takes "
    "pictures: start without trying the largest (--skip-mm-profiling), or allow fewer and smaller ones "
    "(--limit-mm-per-prompt); else lower --max-num-batched-tokens, --max-num-seqs or --max-model-len"
)


def _out_of_memory(log: StartupLog) -> Iterator[SuggestedChange]:
    """What helps where an allocator refused, by what the engine was doing."""
    memory = log.memory
    if not log.is_out_of_memory:
        return
    total, free, held = memory.total_bytes, memory.free_bytes, memory.process_bytes
    if total is not None and free is not None and held is not None:
        others = total - free - held
        if others > _OTHERS_FROM_BYTES:
            yield SuggestedChange(f"other programs hold {format_bytes(others)} of the GPU: stop them")
    if memory.tried_bytes is not None and total is not None and memory.tried_bytes > total:
        sentence = _BY_ENCODER if log.phase == "vision" else _BY_STEP
        yield SuggestedChange(sentence.format(tried=format_bytes(memory.tried_bytes)))
        return
    sentence = _BY_PHASE[log.phase]
    if log.has_given_pool and log.phase not in ("loading", None):
        sentence = sentence.replace("--gpu-memory-utilization", "--kv-cache-memory-bytes")
    yield SuggestedChange(sentence)
    if WITHOUT_NVML in (log.failure or ""):
        yield SuggestedChange("torch words it like this where it is out of memory on a slice of a GPU (MIG)")
    tried, unused = memory.tried_bytes, memory.unused_bytes
    if tried is not None and unused is not None and unused > tried:
        yield SuggestedChange(
            f"torch held {format_bytes(unused)} unused, more than the {format_bytes(tried)} it asked for, in pieces "
            "too small: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )


_SGLANG_WORDS = {
    "--gpu-memory-utilization": "--mem-fraction-static",
    "--max-num-seqs": "--max-running-requests",
    "--max-num-batched-tokens": "--chunked-prefill-size",
    "--max-model-len": "--context-length",
    "--kv-cache-dtype fp8": "--kv-cache-dtype fp8_e4m3",
    "--tensor-parallel-size": "--tp",
    "--enforce-eager": "--disable-cuda-graph",
}


def in_words_of(engine: str, sentence: str) -> str:
    """The sentence in the engine's own option names."""
    if engine == "sglang":
        for ours, theirs in _SGLANG_WORDS.items():
            sentence = sentence.replace(ours, theirs)
    return sentence
