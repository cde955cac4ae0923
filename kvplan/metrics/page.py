"""A server's Prometheus page as a ServerReading, by the names that ``profiles/metrics.json`` has for each engine."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.metrics.histograms import Histogram, histogram_of
from kvplan.metrics.prometheus import Sample, Samples, figure_of, parse_samples
from kvplan.metrics.reading import (
    COUNTERS,
    HISTOGRAMS,
    CacheConfig,
    EngineName,
    ServerReading,
    believable_names,
)
from kvplan.paths import read_shipped

Names = tuple[str, ...]
# Ranks of one engine repeat its figures; data-parallel engines have figures of their own.
_REPEATING_LABELS: Final = ("tp_rank", "pp_rank", "moe_ep_rank", "pid")
_MOST_ENGINES: Final = 1_000
_FULLEST: Final = 2.0
"""A larger usage is no share of a pool."""
_GAUGES: Final = ("num_running", "num_waiting", "kv_cache_used_tokens", "output_throughput")


def read_page(text: str, seconds: float | None = None) -> ServerReading | None:
    """The reading that a page holds; None if no engine that is known wrote it.

    seconds: when it was read, on ``time.perf_counter()``'s clock; now if it is left out. KvplanError for a page that is
    larger than any engine's.
    """
    found = _engine_of(text)
    if found is None:
        return None
    names, prefix = found
    wanted = {prefix + name: name for name in all_names(names)}
    samples = {wanted[name]: _distinct(kept) for name, kept in parse_samples(text, wanted).items()}
    page = _Page(names, samples)
    is_kvplan = names.engine == "vllm" and re.search(f"^{KVPLAN_PREFIX}", text, re.MULTILINE) is not None
    engine: EngineName = "kvplan" if is_kvplan else names.engine
    seconds = time.perf_counter() if seconds is None else seconds
    whole = page.reading(engine, seconds)
    return replace(whole, engines={name: each.reading(engine, seconds) for name, each in page.engines().items()})


def _engine_of(text: str) -> tuple[MetricNames, str] | None:
    for names in ENGINES:
        for prefix in names.prefixes:
            if text.startswith(prefix) or f"\n{prefix}" in text:
                return names, prefix
    return None


def _distinct(samples: Sequence[Sample]) -> list[Sample]:
    """One sample for each data-parallel engine and label: ranks that repeat a figure count once.

    SGLang writes some gauges once in all (``priority=""``) and once more for each priority.
    """
    if any(sample.labels.get("priority") == "" for sample in samples):
        samples = [sample for sample in samples if not sample.labels.get("priority")]
    first: dict[tuple[tuple[str, str], ...], tuple[list[int], Sample]] = {}
    for sample in samples:
        key = tuple(sorted(item for item in sample.labels.items() if item[0] not in _REPEATING_LABELS))
        rank = [_rank(sample.labels.get(label, "")) for label in _REPEATING_LABELS]
        if key not in first or rank < first[key][0]:
            first[key] = rank, sample
    return [sample for _, sample in first.values()]


def _engine_label(sample: Sample) -> str | None:
    """Return the label of a data-parallel engine: vLLM's label ``engine``, SGLang's ``dp_rank``."""
    return sample.labels.get("engine") or sample.labels.get("dp_rank")


def _rank(text: str) -> int:
    return int(figure_of(text) or 0) if text.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class _Page:
    """An engine's samples, by name without prefix."""

    names: MetricNames
    samples: Samples

    def reading(self, engine: EngineName, seconds: float) -> ServerReading:
        names = self.names
        usages = [sample.value for sample in self._of(names.kv_cache_usage) if 0 <= sample.value <= _FULLEST]
        figures: dict[str, float | None] = {name: self._sum(getattr(names, name)) for name in (*_GAUGES, *COUNTERS)}
        histograms: dict[str, Histogram | None] = {name: self._histogram(getattr(names, name)) for name in HISTOGRAMS}
        if engine == "llamacpp":
            figures |= _llamacpp_tokens(figures)
        return ServerReading(
            engine=engine,
            seconds=seconds,
            num_engines=self._num_engines(),
            model_names=self._model_names(),
            waiting_by_reason=self._by_label(names.waiting_by_reason, "reason"),
            kv_cache_usage=sum(usages) / len(usages) if usages else None,
            kv_cache_usage_highest=max(usages, default=None),
            max_num_seqs=_whole(self._sum(names.max_num_seqs)),
            prefix_unit="blocks" if any(name in self.samples for name in names.prefix_blocks) else "tokens",
            prefix_cache_hit_rate=self._mean(names.prefix_cache_hit_rate),
            accepted_per_position=self._by_label(names.accepted_per_position, "position"),
            mean_acceptance_length=self._mean(names.mean_acceptance_length),
            num_finished=self._by_label(names.num_finished, "finished_reason"),
            cache=self._cache(),
            **figures,  # type: ignore[arg-type]
            **histograms,  # type: ignore[arg-type]
        )

    def _of(self, names: Names) -> Sequence[Sample]:
        """The samples under the first of the names that the page has."""
        return next((self.samples[name] for name in names if name in self.samples), ())

    def _sum(self, names: Names) -> float | None:
        samples = self._of(names)
        return sum(sample.value for sample in samples) if samples else None

    def _mean(self, names: Names) -> float | None:
        samples = self._of(names)
        return sum(sample.value for sample in samples) / len(samples) if samples else None

    def _by_label(self, names: Names, label: str) -> Mapping[str, float]:
        found: dict[str, float] = {}
        for sample in self._of(names):
            key = sample.labels.get(label, "all")
            found[key] = found.get(key, 0.0) + sample.value
        return found

    def _histogram(self, names: Names) -> Histogram | None:
        for name in names:
            if f"{name}_bucket" in self.samples:
                return histogram_of(self.samples[f"{name}_bucket"], self.samples.get(f"{name}_sum", ()))
        return None

    def _num_engines(self) -> int:
        return max(1, len({_engine_label(sample) for sample in self._of(self.names.num_running)}))

    def engines(self) -> dict[str, _Page]:
        """Each data-parallel engine's own samples, by its number; empty where there is one engine."""
        names = {label for sample in self._of(self.names.num_running) if (label := _engine_label(sample)) is not None}
        if len(names) < 2:
            return {}
        if len(names) > _MOST_ENGINES:
            raise KvplanError(f"A page of metrics tells of more than {_MOST_ENGINES:,} engines.")
        own: dict[str, dict[str, list[Sample]]] = {name: {} for name in sorted(names, key=_rank)}
        for name, samples in self.samples.items():
            for sample in samples:
                engine = _engine_label(sample)
                if engine in own:
                    own[engine].setdefault(name, []).append(sample)
        return {engine: _Page(self.names, samples) for engine, samples in own.items()}

    def _model_names(self) -> tuple[str, ...]:
        samples = self._of(self.names.num_running)
        return believable_names(sample.labels.get("model_name") for sample in samples)

    def _cache(self) -> CacheConfig:
        infos = [sample.labels for sample in self._of(self.names.cache_config)]
        if infos:
            return _cache_of_labels(infos)
        blocks, size = _whole(self._sum(self.names.num_blocks)), _whole(self._mean(self.names.block_size))
        tokens = _whole(self._sum(self.names.kv_cache_size_tokens))
        if tokens is None and blocks is not None and size is not None:
            tokens = blocks * size
        return CacheConfig(num_blocks=blocks, block_size=size, kv_cache_size_tokens=tokens)


def _cache_of_labels(infos: Sequence[Mapping[str, str]]) -> CacheConfig:
    """vLLM's ``cache_config_info``, one per data-parallel engine. The text None is a missing value."""
    blocks = [figure_of(info.get("num_gpu_blocks")) for info in infos]
    tokens = [figure_of(info.get("kv_cache_size_tokens")) for info in infos]
    concurrency = [figure_of(info.get("kv_cache_max_concurrency")) for info in infos]
    first = infos[0]
    return CacheConfig(
        num_blocks=_whole(_total(blocks)),
        block_size=_whole(figure_of(first.get("block_size"))),
        kv_cache_size_tokens=_whole(_total(tokens)),
        max_concurrency=_total(concurrency),
        cache_dtype=None if first.get("cache_dtype") in (None, "None") else first["cache_dtype"],
        gpu_memory_utilization=figure_of(first.get("gpu_memory_utilization")),
        enable_prefix_caching={"True": True, "False": False}.get(first.get("enable_prefix_caching", "")),
    )


def _llamacpp_tokens(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    """Prompt tokens with the cached ones, which llama.cpp counts apart: all of them were looked up."""
    computed, cached = figures["prompt_tokens"], figures["prefix_cache_hits"]
    if computed is None or cached is None:
        return {}
    return {"prompt_tokens": computed + cached, "prefix_cache_queries": computed + cached}


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _whole(value: float | None) -> int | None:
    return None if value is None or value < 0 else int(value)


@dataclass(frozen=True, slots=True)
class MetricNames:
    """An engine's names for the fields of ServerReading, without the prefix. Empty: it has no such metric.

    prefixes: by which its page is recognised. prefix_blocks: names of the prefix cache's counters that count blocks.
    """

    engine: EngineName
    prefixes: Names
    num_running: Names = ()
    num_waiting: Names = ()
    waiting_by_reason: Names = ()
    kv_cache_usage: Names = ()
    kv_cache_used_tokens: Names = ()
    max_num_seqs: Names = ()
    num_preemptions: Names = ()
    prefix_cache_queries: Names = ()
    prefix_cache_hits: Names = ()
    prefix_blocks: Names = ()
    prefix_cache_hit_rate: Names = ()
    num_drafts: Names = ()
    num_draft_tokens: Names = ()
    num_accepted_tokens: Names = ()
    accepted_per_position: Names = ()
    mean_acceptance_length: Names = ()
    prompt_tokens: Names = ()
    generation_tokens: Names = ()
    output_throughput: Names = ()
    num_finished: Names = ()
    num_rejected: Names = ()
    ttft: Names = ()
    itl: Names = ()
    tpot: Names = ()
    e2e_latency: Names = ()
    queue_time: Names = ()
    prefill_time: Names = ()
    decode_time: Names = ()
    iteration_tokens: Names = ()
    cache_config: Names = ()
    kv_cache_size_tokens: Names = ()
    num_blocks: Names = ()
    block_size: Names = ()


_NOT_METRICS: Final = frozenset({"engine", "prefixes", "prefix_blocks"})


def all_names(names: MetricNames) -> frozenset[str]:
    """Every sample name of the engine that a reading needs, without the prefix."""
    metrics = [name for field in fields(names) if field.name not in _NOT_METRICS for name in getattr(names, field.name)]
    return frozenset(metrics) | {f"{name}_{part}" for name in metrics for part in ("bucket", "sum")}


def _names(row: dict[str, Any]) -> MetricNames:
    del row["source"]
    found: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return MetricNames(**found)


ENGINES: Final = read_shipped("metrics.json", lambda document: tuple(map(_names, document["engines"])))

KVPLAN_PREFIX: Final = "kvplan:"
"""Metrics of kvplan's own server, beside vLLM's."""
