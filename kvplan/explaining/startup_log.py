"""What an engine's start-up log says: settings, where the memory went, the capacity, or why it stopped.

Understands vLLM (0.2 to 0.3x), on CPUs too, and SGLang. Every figure is taken as printed; SGLang's "GB" are GiB. Of
several ranks the one with the least KV memory counts, as in the engines. The peak that vLLM 0.6.3 to 0.6.5 printed
includes the weights.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kvplan.errors import UsageError
from kvplan.explaining import patterns
from kvplan.explaining.stated_settings import first_match, stated_settings
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
    ``consumed_bytes``: weights and what torch does not see, which vLLM prints together from 0.27 on;
    ``graph_estimate_bytes``: what it subtracts for CUDA graphs; ``peak_with_graphs_bytes``: the activations' peak and
    that estimate, where they cannot be told apart. ``total_range``: the least and the most that the GPU has, where its
    memory is not printed but follows.
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
    graph_estimate_bytes: int | None = None
    consumed_bytes: int | None = None
    peak_with_graphs_bytes: int | None = None
    total_range: tuple[int, int] | None = None
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
    ``least_static_fraction``: what SGLang says ``mem_fraction_static`` must be above; ``least_share``: the same of
    ``gpu_memory_utilization`` and vLLM on a CPU. ``has_given_pool``: the cache has
    what --kv-cache-memory-bytes says, instead of what a share of the GPU leaves.
    ``gpu_names``: devices that it names; ``platform``: rocm or xpu where it is not NVIDIA's; ``notes``: what places say
    differently, and what was read off others.
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
    least_share: float | None = None
    has_given_pool: bool = False
    failure: str | None = None
    crash: str | None = None
    wording: str | None = None
    device: Device = "gpu"
    phase: Phase | None = None
    gpu_names: tuple[str, ...] = ()
    platform: str | None = None
    flash_attention: int | None = None
    capability: str | None = None
    notes: tuple[str, ...] = ()

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
        return patterns.OUT_OF_MEMORY_WORDS.search(self.failure or "") is not None


def parse_startup_log(text: str) -> StartupLog:
    """Everything the log says. Lines of other programs are ignored."""
    text = _unwrapped(patterns.COLOURS.sub("", text))
    is_sglang = "sglang" in text.lower() or any(sign in text for sign in patterns.SGLANG_SIGNS)
    names = ("num_blocks", "kv_cache_tokens", "largest_max_model_len", "num_state_blocks")
    counts: dict[str, Any] = {name: _count(text, name) for name in names}
    if counts["num_blocks"] is None:
        counts["num_blocks"] = _cpu_blocks(text)
    is_cpu = not is_sglang and any(sign in text for sign in patterns.CPU_SIGNS)
    stated = stated_settings(text, is_sglang=is_sglang)
    memory = _cpu_memory(text) if is_cpu else _memory(text, stated.settings)
    failure = first_match(text, patterns.FAILURES)
    concurrency = re.findall(patterns.CONCURRENCY, text)
    least, share = (re.search(each, text) for each in (patterns.LEAST_STATIC_FRACTION, patterns.LEAST_CPU_SHARE))
    log = StartupLog(
        engine="sglang" if is_sglang else "vllm",
        model=stated.model,
        version=stated.version,
        settings=replace(stated.settings, device_memory_bytes=_usable(memory.total_bytes)),
        memory=memory,
        max_concurrency=min(map(float, concurrency), default=None),
        least_static_fraction=float(least.group(1)) if least else None,
        least_share=float(share.group(1)) if share else None,
        has_given_pool=_has_given_pool(text, stated.settings),
        failure=failure,
        crash=None if failure is not None else _crash(text),
        device="cpu" if is_cpu else "gpu",
        wording=None if is_sglang else next((release for words, release in patterns.WORDINGS if words in text), None),
        gpu_names=_gpu_names(text),
        platform=next((name for name, pattern in patterns.PLATFORMS if re.search(pattern, text)), None),
        flash_attention=_flash_attention(text),
        capability=_capability(text),
        notes=stated.notes,
        **counts,
    )
    return replace(log, phase=_phase(text)) if log.is_out_of_memory else log


def _unwrapped(text: str) -> str:
    """The text with the engines' long sentences on one line each, as some pages break and quote them.

    Terminals break within words, too, and all lines at one width.
    """
    lines: list[str] = []
    given = text.splitlines()
    widths = Counter(map(len, given))
    for index, line in enumerate(given):
        bare = line.lstrip(_QUOTES)
        if lines and not patterns.NEW_LINE.match(bare) and len(lines[-1]) < _LONGEST_JOINED:
            before = given[index - 1]
            if patterns.WRAPS.search(lines[-1]):
                is_cut = len(before) >= _LEAST_WIDTH and widths[len(before)] > 1
                lines[-1] = lines[-1] + line if is_cut else f"{lines[-1].rstrip()} {bare}"
                continue
        lines.append(line)
    return "\n".join(lines)


_QUOTES = " \t>|▎│"
_LONGEST_JOINED, _LEAST_WIDTH = 2000, 60


def _usable(total_bytes: int | None) -> int | None:
    """A total that a setting can have."""
    try:
        KNOBS["device_memory_bytes"].check(total_bytes)
    except UsageError:
        return None
    return total_bytes


def _has_given_pool(text: str, stated: ServingSettings) -> bool:
    return stated.kv_cache_memory_bytes is not None or any(words in text for words in patterns.GIVEN_POOL)


def _gpu_names(text: str) -> tuple[str, ...]:
    """Return the GPUs as drivers name devices; where none does, as people do."""
    names: list[str] = [name for pattern in patterns.GPU_NAMES for name in re.findall(pattern, text)]
    if not names and patterns.GPUS_IN_WORDS.search(text):
        lines = (line for line in text.splitlines() if not patterns.OF_AN_ENGINE.search(line))
        names = [name for line in lines for name in patterns.GPUS_IN_WORDS.findall(line)]
    return tuple(dict.fromkeys(names))


def _flash_attention(text: str) -> int | None:
    version = re.search(patterns.FLASH_ATTENTION, text)
    return int(version.group(1)) if version else None


def _capability(text: str) -> str | None:
    """The compute capability of an NVIDIA GPU, ``8.9``."""
    found = {".".join(filter(None, numbers)) for numbers in patterns.CAPABILITY.findall(text)}
    return found.pop() if len(found) == 1 else None


def _crash(text: str) -> str | None:
    """The error that ended an engine: the first that is not only a report of another one.

    None where it was told to stop, and reports no more than that it did.
    An engine that does not say that it is gone has ended, too, where an error stands alone and nothing says it serves.
    """
    gone, killed = patterns.STOPPED.search(text), patterns.KILLED.search(text)
    raised: list[str] = patterns.RAISED.findall(text)
    if killed is not None:
        return killed.group(0).strip()
    if gone is None:
        alone = None if patterns.UP.search(text) else patterns.ENDED_BY.search(text)
        return None if alone is None else alone.group(1).strip()
    told = (error for error in raised if not any(words in error for words in patterns.SECONDHAND))
    ordered = patterns.TOLD_TO_STOP.search(text, 0, gone.start())
    first = next(told, None if ordered else gone.group(0))
    return None if first is None else first.strip()


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
    """Return the memory; of several workers the first counts: each has a node of its own."""
    found: dict[str, Any] = {}
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


def _memory(text: str, stated: ServingSettings) -> LogMemory:
    found: dict[str, Any] = dict(_sizes(text, patterns.OUT_OF_MEMORY))
    for name, pattern in patterns.OUT_OF_MEMORY_BYTES:
        match = None if name in found else re.search(pattern, text)
        if match:
            found[name] = int(match.group(1))
    for name, pattern in patterns.MEMORY:
        match = None if name in found else re.search(pattern, text)
        if match:
            found[name] = round(float(match.group(1)) * GIB)
    memory = _with_parted_peak(LogMemory(**found), stated)
    memory = replace(memory, total_range=_total_range(text, memory.graph_estimate_bytes))
    peak = patterns.PEAK_WITH_WEIGHTS.search(text)
    if peak and memory.activation_bytes is None and memory.weight_bytes is not None:
        memory = replace(memory, activation_bytes=round(float(peak.group(1)) * GIB) - memory.weight_bytes)
    pools = [round(float(number) * GIB) for pattern in patterns.POOL for number in re.findall(pattern, text)]
    pools += _sglang_pools(text)
    if not pools and stated.kv_cache_memory_bytes is not None:
        pools = [stated.kv_cache_memory_bytes]
    return replace(memory, kv_pool_bytes=min(pools)) if pools else memory


def _with_parted_peak(memory: LogMemory, stated: ServingSettings) -> LogMemory:
    """The figures that vLLM prints together from 0.27 on (``peak_activation_has_graphs``), apart where that is known.

    What was consumed are the weights and what torch does not see. The peak has the graphs' estimate in it, unless that
    is not subtracted, or there are no graphs.
    """
    if memory.consumed_bytes is None:
        return memory
    if memory.weight_bytes is not None and memory.non_torch_bytes is None:
        memory = replace(memory, non_torch_bytes=max(memory.consumed_bytes - memory.weight_bytes, 0))
    peak, estimate = memory.activation_bytes, memory.graph_estimate_bytes
    if peak is None or stated.enforce_eager or stated.estimate_cudagraphs is False:
        return memory
    if estimate is None:
        return replace(memory, activation_bytes=None, peak_with_graphs_bytes=peak)
    return replace(memory, activation_bytes=max(peak - estimate, 0))


_SHARE_STEP, _ESTIMATE_STEP = 0.00005, 0.005 * GIB
"""Half the last digit: shares are printed with four, the estimate with two."""


def _total_range(text: str, estimate: int | None) -> tuple[int, int] | None:
    """The GPU's memory, least and most: the graphs' estimate is as much of it as two printed shares are apart."""
    shares = next((match for pattern in patterns.SHARES if (match := re.search(pattern, text))), None)
    if shares is None or estimate is None:
        return None
    apart, size = abs(float(shares.group(1)) - float(shares.group(2))), abs(estimate)
    if apart <= 2 * _SHARE_STEP or size <= 2 * _ESTIMATE_STEP:
        return None
    return round((size - _ESTIMATE_STEP) / (apart + _SHARE_STEP)), round(
        (size + _ESTIMATE_STEP) / (apart - _SHARE_STEP)
    )


def _sglang_pools(text: str) -> list[int]:
    """What each rank set aside for caches: K and V (or one latent cache), windows, states, a draft model's too."""
    if not any(sign in text for sign in patterns.SGLANG_SIGNS):
        return []
    by_rank: dict[str, float] = {}
    windows: dict[str, float] = {}
    for line in text.splitlines():
        rank = patterns.SGLANG_RANK.search(line)
        name = rank.group(1) if rank else ""
        for pattern in (*patterns.SGLANG_WHOLE_POOL, patterns.SGLANG_WINDOW_POOL):
            whole = re.search(pattern, line)
            if whole:
                windows[name] = windows.get(name, 0.0) + float(whole.group(1))
        if patterns.SGLANG_POOL.search(line):
            by_rank[name] = by_rank.get(name, 0.0) + sum(map(float, patterns.SGLANG_SIZE.findall(line)))
    names = {**by_rank, **windows}
    return [round(max(by_rank.get(name, 0.0), windows.get(name, 0.0)) * GIB) for name in names]
