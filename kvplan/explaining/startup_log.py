"""What an engine's start-up log says: settings, where the memory went, the capacity, or why it stopped.

Understands vLLM (0.2 to 0.3x), on CPUs too, and SGLang. Every figure is taken as printed; SGLang's "GB" are GiB. Of
several ranks the one with the least KV memory counts, as in the engines. The peak that vLLM 0.6.3 to 0.6.5 printed
includes the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kvplan.errors import UsageError
from kvplan.explaining import patterns
from kvplan.settings import KNOBS, ServingSettings
from kvplan.units import GIB, KIB, MIB

Engine = Literal["vllm", "sglang"]
Device = Literal["gpu", "cpu"]
Phase = Literal["loading", "profiling", "vision", "carving", "capturing", "warming up", "serving"]
"""What an engine was doing when it ran out of memory. carving: setting the pool aside; vision: profiling a tower."""


@dataclass(frozen=True, slots=True)
class LogMemory:
    """Bytes of one GPU (or of a CPU's memory node) as printed; None: not printed.

    ``needed_kv_bytes``: what a refused request would have taken. ``left_bytes``: free when everything is in place (only
    SGLang prints it). ``used_bytes``: what vLLM's process held on a CPU before the cache, weights included.
    Where torch ran out of memory: ``tried_bytes`` is what it asked for, ``process_bytes`` what the process held, and
    ``unused_bytes`` what torch had reserved without using it.
    """

    total_bytes: int | None = None
    free_bytes: int | None = None
    budget_bytes: int | None = None
    weight_bytes: int | None = None
    activation_bytes: int | None = None
    non_torch_bytes: int | None = None
    graph_bytes: int | None = None
    kv_pool_bytes: int | None = None
    needed_kv_bytes: int | None = None
    left_bytes: int | None = None
    used_bytes: int | None = None
    tried_bytes: int | None = None
    process_bytes: int | None = None
    unused_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StartupLog:
    """One start of an engine. ``failure`` is the sentence about memory it stopped with, None when it came up.

    ``crash``: another error that ended it. ``num_state_blocks``: sequences that a refused hybrid has states for.
    ``least_static_fraction``: what SGLang says ``mem_fraction_static`` must be above. ``has_given_pool``: the cache has
    what --kv-cache-memory-bytes says, instead of what a share of the GPU leaves.
    ``settings``: those that were printed, the others open; SGLang's under vLLM's names. ``wording``: a release of vLLM
    that words its lines like this log, for logs without a version.
    """

    engine: Engine
    model: str | None = None
    version: str | None = None
    settings: ServingSettings = field(default_factory=ServingSettings)
    memory: LogMemory = field(default_factory=LogMemory)
    num_blocks: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    largest_max_model_len: int | None = None
    num_state_blocks: int | None = None
    least_static_fraction: float | None = None
    has_given_pool: bool = False
    failure: str | None = None
    crash: str | None = None
    wording: str | None = None
    device: Device = "gpu"
    phase: Phase | None = None

    @property
    def has_figures(self) -> bool:
        figures = (self.memory.weight_bytes, self.memory.kv_pool_bytes, self.num_blocks, self.kv_cache_tokens)
        return self.stopped is not None or any(figure is not None for figure in figures)

    @property
    def stopped(self) -> str | None:
        """What ended the engine, None when it came up."""
        return self.failure or self.crash

    @property
    def is_out_of_memory(self) -> bool:
        """Whether an allocator refused what was asked of it."""
        return any(words in (self.failure or "") for words in patterns.OUT_OF_MEMORY_WORDS)


def parse_startup_log(text: str) -> StartupLog:
    """Everything the log says. Lines of other programs are ignored."""
    is_sglang = "sglang" in text.lower() or any(sign in text for sign in patterns.SGLANG_SIGNS)
    names = ("num_blocks", "kv_cache_tokens", "largest_max_model_len", "num_state_blocks")
    counts: dict[str, Any] = {name: _count(text, name) for name in names}
    if counts["num_blocks"] is None:
        counts["num_blocks"] = _cpu_blocks(text)
    is_cpu = not is_sglang and any(sign in text for sign in patterns.CPU_SIGNS)
    said, memory = _names(text), _cpu_memory(text) if is_cpu else _memory(text)
    failure = _first(text, patterns.FAILURES)
    model, version = said.pop("model", None), said.pop("version", None)
    concurrency = re.findall(patterns.CONCURRENCY, text)
    least = re.search(patterns.LEAST_STATIC_FRACTION, text)
    log = StartupLog(
        engine="sglang" if is_sglang else "vllm",
        model=model,
        version=version,
        settings=ServingSettings(**said, **_settings(text, memory)),
        memory=memory,
        max_concurrency=min(map(float, concurrency), default=None),
        least_static_fraction=float(least.group(1)) if least else None,
        has_given_pool=patterns.GIVEN_POOL in text,
        failure=failure,
        crash=None if failure is not None else _crash(text),
        device="cpu" if is_cpu else "gpu",
        wording=None if is_sglang else next((release for words, release in patterns.WORDINGS if words in text), None),
        **counts,
    )
    return replace(log, phase=_phase(text)) if log.is_out_of_memory else log


def _crash(text: str) -> str | None:
    """The error that ended an engine that says it is gone: the first that is not only a report of another one."""
    gone = patterns.STOPPED.search(text)
    if gone is None:
        return None
    raised: list[str] = patterns.RAISED.findall(text)
    told = (error for error in raised if not any(words in error for words in patterns.SECONDHAND))
    return next(told, gone.group(0)).strip()


def _first(text: str, patterns: Iterable[str]) -> str | None:
    for pattern in patterns:
        match = re.search(pattern, text)
        if match:
            return match.group(1).strip()
    return None


def _count(text: str, name: str) -> int | None:
    """The smallest number printed under ``name``: the smallest rank decides."""
    for each, pattern in patterns.COUNTS:
        found = re.findall(pattern, text) if each == name else []
        if found:
            return min(int(number.replace(",", "")) for number in found)
    return None


def _cpu_blocks(text: str) -> int | None:
    """vLLM's first engine called the blocks of a CPU so, and those to swap to as well, which come second."""
    found = re.search(patterns.CPU_BLOCKS, text) if "device_config=cpu" in text else None
    return int(found.group(1)) if found else None


def _phase(text: str) -> Phase | None:
    """What ran when the memory was refused, None where neither a traceback nor the lines before tell."""
    phase = next((name for name, pattern in patterns.PHASES if re.search(pattern, text)), None)
    if phase in (None, "vision", "loading"):
        if patterns.CAPTURED in text and patterns.STOPPED.search(text):
            return "warming up"
        if patterns.CAPTURING in text and patterns.CAPTURED not in text:
            return "capturing"
        if re.search(patterns.RUNNING, text):
            return "serving"
        if phase == "loading" and re.search(patterns.LOADED, text):
            return "profiling"
    return phase  # type: ignore[return-value]


_SIZES = {"KiB": KIB, "MiB": MIB, "GiB": GIB}


def _sizes(text: str, table: Iterable[tuple[str, str]]) -> dict[str, int]:
    """The first amount with a unit, such as 58.81 MiB, under each name."""
    found: dict[str, int] = {}
    for name, pattern in table:
        match = re.search(pattern, text)
        if match:
            number, unit = match.group(1).split()
            found[name] = round(float(number) * _SIZES[unit])
    return found


def _cpu_memory(text: str) -> LogMemory:
    """Of several workers the first counts: each has a node of its own."""
    found: dict[str, int] = {}
    for name, pattern in patterns.CPU_MEMORY:
        match = None if name in found else re.search(pattern, text)
        if match:
            found[name] = round(float(match.group(1)) * GIB)
    weights = re.search(rf"Model loading took {patterns.AMOUNT}", text)
    needed = re.search(rf"{patterns.AMOUNT} KV cache is needed", text)
    return LogMemory(
        **found,
        weight_bytes=round(float(weights.group(1)) * GIB) if weights else None,
        needed_kv_bytes=round(float(needed.group(1)) * GIB) if needed else None,
    )


def _memory(text: str) -> LogMemory:
    found: dict[str, int] = _sizes(text, patterns.OUT_OF_MEMORY)
    for name, pattern in patterns.OUT_OF_MEMORY_BYTES:
        match = None if name in found else re.search(pattern, text)
        if match:
            found[name] = int(match.group(1))
    for name, pattern in patterns.MEMORY:
        match = None if name in found else re.search(pattern, text)
        if match:
            found[name] = round(float(match.group(1)) * GIB)
    memory = LogMemory(**found)
    peak = patterns.PEAK_WITH_WEIGHTS.search(text)
    if peak and memory.activation_bytes is None and memory.weight_bytes is not None:
        memory = replace(memory, activation_bytes=round(float(peak.group(1)) * GIB) - memory.weight_bytes)
    pools = [round(float(number) * GIB) for pattern in patterns.POOL for number in re.findall(pattern, text)]
    pools += _sglang_pools(text)
    return replace(memory, kv_pool_bytes=min(pools)) if pools else memory


def _sglang_pools(text: str) -> list[int]:
    """What each rank set aside for caches: K and V (or one latent cache), windows, states, a draft model's too."""
    by_rank: dict[str, float] = {}
    for line in text.splitlines():
        if "Cache is allocated." not in line:
            continue
        rank = patterns.SGLANG_RANK.search(line)
        name = rank.group(1) if rank else ""
        by_rank[name] = by_rank.get(name, 0.0) + sum(map(float, patterns.SGLANG_SIZE.findall(line)))
    return [round(size * GIB) for size in by_rank.values()]


def _names(text: str) -> dict[str, Any]:
    """The first value that is printed for each name."""
    found: dict[str, Any] = {}
    for name, pattern in patterns.NAMES:
        values = [value for value in re.findall(pattern, text) if value not in patterns.NOTHING]
        if values:
            found.setdefault(name, values[0])
    return found


def _settings(text: str, memory: LogMemory) -> dict[str, Any]:
    """Those that are printed, without what is out of a setting's range."""
    found: dict[str, Any] = {"device_memory_bytes": memory.total_bytes}
    for name, pattern in patterns.NUMBER_SETTINGS:
        numbers = re.findall(pattern, text)
        if numbers:
            found.setdefault(name, int(numbers[0].replace(",", "")))
    utilization = _first(text, patterns.UTILIZATION)
    if utilization is not None:
        found["gpu_memory_utilization"] = float(utilization)
    for name in patterns.SWITCHES:
        values = re.findall(rf"""\b{name}['"]?[=:]\s*(True|False)""", text)
        if values:
            # The engine's own line comes last and says what was made of the arguments.
            found[name] = values[-1] == "True"
    found["language_model_only"] = any(phrase in text for phrase in patterns.TEXT_ONLY)
    if patterns.NO_GRAPH_ESTIMATE in text and "profiling is disabled" in text:
        found["estimate_cudagraphs"] = False
    found["has_flashinfer"] = "Using FlashInfer for top-p & top-k sampling" in text
    return {name: value for name, value in found.items() if _is_in_range(name, value)}


def _is_in_range(name: str, value: Any) -> bool:
    try:
        KNOBS[name].check(value)
    except UsageError:
        return False
    return True
