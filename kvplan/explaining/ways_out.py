"""What helps an engine that stopped, or wastes what it has, read from its own words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvplan.explaining.patterns import WITHOUT_NVML
from kvplan.explaining.startup_log import LogMemory, Phase, StartupLog
from kvplan.units import GIB, format_bytes

_OTHERS_FROM_BYTES: Final = GIB
"""More than this beside the process, and other programs are named: a driver's context is smaller."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something to change, with what it would give: tokens of KV cache more than now (None: unknown)."""

    sentence: str
    gained_tokens: int | None = None


def ways_out(log: StartupLog) -> Iterator[Change]:
    """Changes that the log itself suggests; those that a prediction suggests come on top."""
    memory, failure = log.memory, log.failure
    if log.has_given_pool and memory.kv_pool_bytes is not None:
        yield Change(
            f"for more KV cache raise --kv-cache-memory-bytes (now {format_bytes(memory.kv_pool_bytes)}), or leave it "
            "out: --gpu-memory-utilization has no effect beside it"
        )
    if failure is None:
        if log.crash is not None:
            return
        rows, concurrency = log.settings.max_num_seqs, log.max_concurrency
        if rows and concurrency and concurrency > 2 * rows:
            yield Change(f"the pool holds {concurrency:.0f} sequences but --max-num-seqs is {rows}: raise it")
        return
    if log.largest_max_model_len:
        yield Change(f"lower --max-model-len to {log.largest_max_model_len} or less, or make room for the cache")
    elif log.kv_cache_tokens and "max seq len" in failure:
        yield Change(f"lower --max-model-len to {log.kv_cache_tokens} or less, or make room for the cache")
    if memory.needed_kv_bytes and memory.kv_pool_bytes is not None:
        missing = memory.needed_kv_bytes - memory.kv_pool_bytes
        yield Change(f"one request of the maximum length needs {format_bytes(missing)} more KV cache on each GPU")
    if log.num_state_blocks:
        yield Change(
            f"set --max-num-seqs {log.num_state_blocks}: each running sequence takes a block of states, and CUDA "
            "graphs are captured for all of them; or raise --gpu-memory-utilization, or use more GPUs"
        )
    if "is less than desired" in failure and memory.free_bytes and memory.total_bytes:
        yield Change(
            f"other programs use {format_bytes(max(memory.total_bytes - memory.free_bytes, 0))} of the GPU: stop them"
            + or_lower_to(memory.free_bytes / memory.total_bytes)
        )
    if memory.kv_pool_bytes is not None and memory.kv_pool_bytes <= 0:
        yield Change(f"{format_bytes(-memory.kv_pool_bytes)} more is needed before there is any KV cache")
    if "No available memory" in failure or "Not enough memory" in failure:
        yield Change(
            "raise --gpu-memory-utilization if nothing else uses the GPU, lower --max-num-seqs or "
            "--max-num-batched-tokens, or use more GPUs"
        )
    if "leave no GPU memory" in failure:
        yield Change(_beside_the_weights(log.least_static_fraction))
    if log.is_out_of_memory:
        yield from _out_of_memory(memory, log.phase)
    if WITHOUT_NVML in failure:
        yield Change("torch words it like this where it is out of memory on a slice of a GPU (MIG)")


def or_lower_to(share: float) -> str:
    """``, or lower --gpu-memory-utilization to 0.85``; nothing where there is no such share."""
    rounded = int(share * 100) / 100
    return f", or lower --gpu-memory-utilization to {rounded}" if 0 < rounded < 1 else ""


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
    "pictures' size (--mm-processor-kwargs), leave the tower out (--language-model-only), or use more GPUs",
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


def _out_of_memory(memory: LogMemory, phase: Phase | None) -> Iterator[Change]:
    total, free, held = memory.total_bytes, memory.free_bytes, memory.process_bytes
    if total is not None and free is not None and held is not None:
        others = total - free - held
        if others > _OTHERS_FROM_BYTES:
            yield Change(f"other programs hold {format_bytes(others)} of the GPU: stop them")
    yield Change(_BY_PHASE[phase])
    tried, unused = memory.tried_bytes, memory.unused_bytes
    if tried is not None and unused is not None and unused > tried:
        yield Change(
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
