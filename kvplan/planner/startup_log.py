"""What an engine's start-up log says: settings, where the memory went, the capacity, or why it stopped.

Understands vLLM (0.2 to 0.3x) and SGLang. Every figure is taken as printed; SGLang's "GB" are GiB. Of several ranks the
one with the least KV memory counts, as in the engines. The peak that vLLM 0.6.3 to 0.6.5 printed includes the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kvplan.settings import ServingSettings
from kvplan.units import GIB

Engine = Literal["vllm", "sglang"]


@dataclass(frozen=True, slots=True)
class LogMemory:
    """Bytes of one GPU as printed; None: not printed.

    ``needed_kv_bytes``: what a refused request would have taken. ``left_bytes``: free when everything is in place (only
    SGLang prints it).
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


@dataclass(frozen=True, slots=True)
class StartupLog:
    """One start of an engine. ``failure`` is the sentence it stopped with, None when it came up.

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
    failure: str | None = None
    wording: str | None = None

    @property
    def has_figures(self) -> bool:
        figures = (self.memory.weight_bytes, self.memory.kv_pool_bytes, self.num_blocks, self.kv_cache_tokens)
        return self.failure is not None or any(figure is not None for figure in figures)


_AMOUNT = r"(-?\d+(?:\.\d+)?) ?Gi?B"
_MEMORY: tuple[tuple[str, str], ...] = (
    ("weight_bytes", rf"Model loading took {_AMOUNT}"),
    ("weight_bytes", rf"Loading model weights took {_AMOUNT}"),
    ("weight_bytes", rf"model weights take {_AMOUNT}"),
    ("weight_bytes", rf"Actual usage is {_AMOUNT} for weight"),
    ("weight_bytes", rf"Load weight end\..*mem usage={_AMOUNT}"),
    ("activation_bytes", rf"PyTorch activation peak memory takes {_AMOUNT}"),
    ("activation_bytes", rf"{_AMOUNT} for peak activation"),
    ("non_torch_bytes", rf"non_torch_memory takes {_AMOUNT}"),
    ("non_torch_bytes", rf"{_AMOUNT} for non-torch memory"),
    ("graph_bytes", rf"Graph capturing finished in .*took {_AMOUNT}"),
    ("graph_bytes", rf"{_AMOUNT} for CUDAGraph memory"),
    ("graph_bytes", rf"Estimated CUDA graph memory: {_AMOUNT} total"),
    ("graph_bytes", rf"Capture cuda graph end\..*mem usage={_AMOUNT}"),
    ("total_bytes", rf"total_gpu_memory ?[(=]{_AMOUNT}"),
    ("total_bytes", rf"has a total capacity of {_AMOUNT}"),
    ("total_bytes", rf"Free memory on device.*?\(-?[\d.]+/{_AMOUNT}\)"),
    ("free_bytes", rf"Load weight begin\. avail mem={_AMOUNT}"),
    ("free_bytes", r"Free memory on device.*?\((-?[\d.]+)/[\d.]+ GiB\)"),
    ("budget_bytes", rf"gpu_memory_utilization \([\d.]+\) = {_AMOUNT}"),
    ("budget_bytes", rf"GPU memory utilization (?:is )?\([\d.]+, {_AMOUNT}\)"),
    ("left_bytes", rf"available_gpu_mem={_AMOUNT}"),
    ("left_bytes", rf"Capture (?:target )?(?:decode )?(?i:cuda) graph end\..*avail mem={_AMOUNT}"),
    ("needed_kv_bytes", rf"\(?{_AMOUNT} KV cache is needed"),
)
_POOL = (
    rf"Available KV cache memory: {_AMOUNT}",
    rf"the rest of the memory reserved for KV Cache is {_AMOUNT}",
    rf"larger than the available KV cache memory \({_AMOUNT}\)",
    rf"kv_cache_size={_AMOUNT}",
)
_SGLANG_RANK = re.compile(r"\bTP(\d+)\b.*?\]")
_SGLANG_SIZE = re.compile(r"(?:\b(?:K|V|KV) size|(?:conv|ssm)_state size|_cache size): ?([\d.]+) ?GB")
_PEAK_WITH_WEIGHTS = re.compile(rf"peak_torch_memory={_AMOUNT}")
_COUNTS: tuple[tuple[str, str], ...] = (
    ("num_blocks", r"(?:# )?(?:GPU|CUDA|cuda) blocks: (\d+)"),
    ("kv_cache_tokens", r"GPU KV cache size: ([\d,]+) tokens"),
    ("kv_cache_tokens", r"max_total_num_tokens=(\d+)"),
    ("kv_cache_tokens", r"#tokens: (\d+), K size"),
    ("kv_cache_tokens", r"that can be stored in KV cache \((\d+)\)"),
    ("largest_max_model_len", r"estimated maximum model length is (\d+)"),
)
_NAMES: tuple[tuple[str, str], ...] = (
    ("version", r"(?:vLLM API server version|LLM engine \()\s*v?(\d[\w.+]*)"),
    ("model", r"""(?:\bmodel|model_path)['"]?[=:]\s*['"]([^'"]+)['"]"""),
    ("model", r"--model(?:-path)?[= ](\S+)"),
    ("dtype", r"""\bdtype['"]?[=:]\s*['"]?(?:torch\.)?(bfloat16|float16|float32)"""),
    ("quantization", r"""\bquantization['"]?[=:]\s*['"]?([\w-]+)"""),
    ("kv_cache_dtype", r"""kv_cache_dtype['"]?[=:]\s*['"]?([\w-]+)"""),
)
_NUMBER_SETTINGS: tuple[tuple[str, str], ...] = (
    ("max_model_len", r"""(?:max_model_len|max_seq_len|context_len|context_length)['"]?[=:]\s*(\d+)"""),
    ("max_model_len", r"Maximum concurrency for ([\d,]+) tokens"),
    ("max_num_batched_tokens", r"""(?:max_num_batched_tokens|chunked_prefill_size)['"]?[=:]\s*(\d+)"""),
    ("max_num_seqs", r"""(?:max_num_seqs|max_running_requests)['"]?[=:]\s*(\d+)"""),
    ("tensor_parallel_size", r"""(?:tensor_parallel_size|tp_size)['"]?[=:]\s*(\d+)"""),
    ("pipeline_parallel_size", r"""(?:pipeline_parallel_size|pp_size)['"]?[=:]\s*(\d+)"""),
    ("num_speculative_tokens", r"""(?:num_speculative_tokens|num_spec_tokens)['"]?[=:]\s*(\d+)"""),
    ("decode_context_parallel_size", r"""decode_context_parallel_size['"]?[=:]\s*(\d+)"""),
)
_SWITCHES = ("enforce_eager", "enable_prefix_caching")
_TEXT_ONLY = ("running in text-only mode", "'language_model_only': True")
_NO_GRAPH_ESTIMATE = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0)"
_UTILIZATION = (
    r"""(?:gpu_memory_utilization|mem_fraction_static)['"]?[=:]\s*(0?\.\d+|1\.0)""",
    r"--mem-fraction-static[= ](0?\.\d+)",
    r"gpu_memory_utilization \((\d\.\d+)\)",
    r"GPU memory utilization (?:is )?\((\d?\.\d+),",
)
_FAILURES = (
    r"(To serve at least one request with the models?'s max seq len.*)",
    r"(The model's max seq len \(\d+\) is larger than the maximum number of tokens.*)",
    r"(No available memory for the cache blocks.*)",
    r"(CUDA out of memory\. Tried to allocate.*)",
    r"(Free memory on device.*is less than desired.*)",
    r"(Not enough memory\. Please try.*)",
)
_WORDINGS = (
    ("Memory profiling results: ", "0.6.4"),
    ("the current vLLM instance can use", "0.7.3"),
    ("the rest of the memory reserved for KV Cache", "0.7.3"),
    ("# GPU blocks: ", "0.5.4"),
)
"""What releases of the first engine printed; the newer ones print their version."""
_NOTHING = ("None", "none", "null")


def parse_startup_log(text: str) -> StartupLog:
    """Everything the log says. Lines of other programs are ignored."""
    is_sglang = "sglang" in text.lower() or "ServerArgs(" in text or "KV Cache is allocated" in text
    counts = {name: _count(text, name) for name in ("num_blocks", "kv_cache_tokens", "largest_max_model_len")}
    names, memory = _names(text), _memory(text)
    model, version = names.pop("model", None), names.pop("version", None)
    concurrency = re.findall(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", text)
    return StartupLog(
        engine="sglang" if is_sglang else "vllm",
        model=model,
        version=version,
        settings=ServingSettings(**names, **_settings(text), device_memory_bytes=memory.total_bytes),
        memory=memory,
        max_concurrency=min(map(float, concurrency), default=None),
        failure=_first(text, _FAILURES),
        wording=None if is_sglang else next((release for words, release in _WORDINGS if words in text), None),
        **counts,
    )


def _first(text: str, patterns: Iterable[str]) -> str | None:
    for pattern in patterns:
        match = re.search(pattern, text)
        if match:
            return match.group(1).strip()
    return None


def _count(text: str, name: str) -> int | None:
    """The smallest number printed under ``name``: the smallest rank decides."""
    for each, pattern in _COUNTS:
        found = re.findall(pattern, text) if each == name else []
        if found:
            return min(int(number.replace(",", "")) for number in found)
    return None


def _memory(text: str) -> LogMemory:
    found: dict[str, int] = {}
    for name, pattern in _MEMORY:
        match = None if name in found else re.search(pattern, text)
        if match:
            found[name] = round(float(match.group(1)) * GIB)
    memory = LogMemory(**found)
    peak = _PEAK_WITH_WEIGHTS.search(text)
    if peak and memory.activation_bytes is None and memory.weight_bytes is not None:
        memory = replace(memory, activation_bytes=round(float(peak.group(1)) * GIB) - memory.weight_bytes)
    pools = [round(float(number) * GIB) for pattern in _POOL for number in re.findall(pattern, text)]
    pools += _sglang_pools(text)
    return replace(memory, kv_pool_bytes=min(pools)) if pools else memory


def _sglang_pools(text: str) -> list[int]:
    """What each rank set aside for caches: K and V (or one latent cache), windows, states, a draft model's too."""
    by_rank: dict[str, float] = {}
    for line in text.splitlines():
        if "Cache is allocated." not in line:
            continue
        rank = _SGLANG_RANK.search(line)
        name = rank.group(1) if rank else ""
        by_rank[name] = by_rank.get(name, 0.0) + sum(map(float, _SGLANG_SIZE.findall(line)))
    return [round(size * GIB) for size in by_rank.values()]


def _names(text: str) -> dict[str, Any]:
    """The first value that is printed for each name."""
    found: dict[str, Any] = {}
    for name, pattern in _NAMES:
        values = [value for value in re.findall(pattern, text) if value not in _NOTHING]
        if values:
            found.setdefault(name, values[0])
    return found


def _settings(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, pattern in _NUMBER_SETTINGS:
        numbers = re.findall(pattern, text)
        if numbers:
            found.setdefault(name, int(numbers[0].replace(",", "")))
    utilization = _first(text, _UTILIZATION)
    if utilization is not None:
        found["gpu_memory_utilization"] = float(utilization)
    for name in _SWITCHES:
        values = re.findall(rf"""\b{name}['"]?[=:]\s*(True|False)""", text)
        if values:
            # The engine's own line comes last and says what was made of the arguments.
            found[name] = values[-1] == "True"
    found["language_model_only"] = any(phrase in text for phrase in _TEXT_ONLY)
    if _NO_GRAPH_ESTIMATE in text and "profiling is disabled" in text:
        found["estimate_cudagraphs"] = False
    found["has_flashinfer"] = "Using FlashInfer for top-p & top-k sampling" in text
    return found
