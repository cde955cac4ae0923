"""What a server says of itself at one moment, under one set of names (vLLM's)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Final, Literal

from kvplan.metrics.histograms import Histogram

EngineName = Literal["kvplan", "vllm", "sglang", "llamacpp", "trtllm"]
PrefixUnit = Literal["tokens", "blocks"]

_MOST_NAMES: Final = 100
_LONGEST_NAME: Final = 1_000


def believable_names(names: Iterable[object]) -> tuple[str, ...]:
    """Names of models, each once, and no more or longer ones than a server has."""
    kept = (name for name in names if isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME)
    return tuple(islice(dict.fromkeys(kept), _MOST_NAMES))


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The KV pool a server runs with, of all its data-parallel engines together. None: not told.

    kv_cache_size_tokens: what the server itself says, else blocks x block size where that is exact. max_concurrency:
    sequences of the longest context that fit, as the server computes it.
    """

    num_blocks: int | None = None
    block_size: int | None = None
    kv_cache_size_tokens: int | None = None
    max_concurrency: float | None = None
    cache_dtype: str | None = None
    gpu_memory_utilization: float | None = None
    enable_prefix_caching: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a server counts and times. None: it does not tell.

    prefix_cache_queries, prefix_cache_hits: prompt tokens, or blocks. num_drafts: verifications of a sequence's draft
    tokens; accepted_per_position: how many of their first, second, ... tokens were accepted, by position from 0.
    num_finished: requests by the reason they finished for ("all" where the engine does not say). Times in seconds;
    iteration_tokens: tokens of each engine step.
    """

    num_preemptions: float | None = None
    prefix_cache_queries: float | None = None
    prefix_cache_hits: float | None = None
    num_drafts: float | None = None
    num_draft_tokens: float | None = None
    num_accepted_tokens: float | None = None
    accepted_per_position: Mapping[str, float] = field(default_factory=dict)
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    num_finished: Mapping[str, float] = field(default_factory=dict)
    num_rejected: float | None = None
    ttft: Histogram | None = None
    itl: Histogram | None = None
    tpot: Histogram | None = None
    e2e_latency: Histogram | None = None
    queue_time: Histogram | None = None
    prefill_time: Histogram | None = None
    decode_time: Histogram | None = None
    iteration_tokens: Histogram | None = None


@dataclass(frozen=True, slots=True)
class ServerReading(Counted):
    """One reading of a server's metrics. Counters count since it started; None: the server does not tell.

    seconds: when it was read, ``time.perf_counter()``. num_engines: data-parallel engines that report; running, waiting
    and counters are their sums, kv_cache_usage (0 to 1) their mean and kv_cache_usage_highest that of the fullest.
    waiting_by_reason: vLLM's ``capacity`` and ``deferred``. prefix_unit: what prefix hits are counted in, because vLLM
    0.8 and TensorRT-LLM count blocks. prefix_cache_hit_rate: a gauge, where an engine has no counters.
    mean_acceptance_length: SGLang's gauge of the tokens of a verification. max_num_seqs: where the page says it.
    kv_cache_used_tokens: as told. num_slots, slot_tokens: llama.cpp's places for sequences, and the longest sequence
    that one takes. engines: where there are several, what each of them says, by its number.
    """

    engine: EngineName
    seconds: float
    num_engines: int = 1
    model_names: tuple[str, ...] = ()
    num_running: float | None = None
    num_waiting: float | None = None
    waiting_by_reason: Mapping[str, float] = field(default_factory=dict)
    kv_cache_usage: float | None = None
    kv_cache_usage_highest: float | None = None
    kv_cache_used_tokens: float | None = None
    num_slots: int | None = None
    slot_tokens: int | None = None
    max_num_seqs: int | None = None
    prefix_unit: PrefixUnit = "tokens"
    prefix_cache_hit_rate: float | None = None
    mean_acceptance_length: float | None = None
    output_throughput: float | None = None
    cache: CacheConfig = CacheConfig()
    engines: Mapping[str, ServerReading] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Every field by name; histograms as mean, count and percentiles, because JSON has no infinity."""
        plain = asdict(replace(self, engines={})) | {
            name: histogram_json(value) for name in HISTOGRAMS if (value := getattr(self, name)) is not None
        }
        return plain | {"engines": {name: engine.as_json() for name, engine in self.engines.items()}}


HISTOGRAMS = ("ttft", "itl", "tpot", "e2e_latency", "queue_time", "prefill_time", "decode_time", "iteration_tokens")
"""The fields of Counted that are histograms."""

COUNTERS = (
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "prompt_tokens",
    "generation_tokens",
    "num_rejected",
)
"""The fields of Counted that only grow while a server runs."""


def histogram_json(histogram: Histogram) -> dict[str, float | None]:
    """count, mean and percentiles, in the metric's unit."""
    percentiles = {f"p{percent}": histogram.percentile(percent) for percent in (50, 90, 95, 99)}
    return {"count": histogram.count, "mean": histogram.mean, **percentiles}
