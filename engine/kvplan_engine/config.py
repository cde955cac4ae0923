"""The engine's settings, under vLLM's names. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan_engine.errors import EngineError

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn"} | {name: name for name in DTYPES}
LOAD_FORMATS = ("auto", "dummy", "safetensors", "gguf")
DEVICES = ("auto", "cpu", "cuda")
PREEMPTION_MODES = ("auto", "recompute", "swap")
SCHEDULINGS = ("continuous", "static")
KV_RESERVATIONS = ("paged", "contiguous")
KV_LOAD_POLICIES = ("auto", "always")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that decides how an engine starts. Values are checked here; EngineError names the bad one.

    model: a directory, a config.json, a .gguf file, a shipped short name, a hub id, or a config dict.
    gpu_memory_utilization: share of the device's total memory the engine may use, in (0, 1].
    max_model_len: longest sequence (prompt + answer) in tokens; None takes the model's own limit.
    max_num_seqs, max_num_batched_tokens: most sequences and most tokens in one step.
    kv_cache_dtype: how K and V are stored: "auto" as the weights are, a dtype, or "fp8" (also "fp8_e4m3"): in one byte,
    with no scale, and values beyond 448 as 448.
    block_size: tokens per KV block. device_memory: total bytes of the device; None asks it.
    swap_space: bytes of host memory for swapped-out blocks (0: preempted sequences are computed again).
    preemption_mode: "recompute", "swap" (when swap_space has room), or "auto": swap when there is room and copying
    costs less than computing again (see ``offload/cost.py``).
    kv_host_cache_bytes: host memory for blocks that the prefix cache evicts (0: none).
    kv_disk_cache_dir, kv_disk_cache_bytes: where blocks go from there, and how much of them is kept there per model;
    they outlive the engine. kv_load_policy: "auto" loads a block when that is cheaper than computing it, or "always".
    scheduling: "continuous", or "static": a batch starts when the one before has finished entirely. kv_reservation:
    "paged", or "contiguous": a sequence holds room for max_model_len tokens from its start, and nothing is shared, so
    prefix caching is off. Both are what the sources compare with.
    enforce_eager: launch every step's kernels one by one; otherwise a GPU replays decode steps that were captured as
    graphs. async_scheduling: start a step before the tokens of the last one have been read; None: where the device
    works on its own, that is on a GPU.
    """

    model: Any
    device: str = "auto"
    dtype: str = "auto"
    load_format: str = "auto"
    gpu_memory_utilization: float = 0.9
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    enable_prefix_caching: bool = True
    swap_space: int = 0
    device_memory: int | None = None
    seed: int = 0
    tensor_parallel_size: int = 1
    attention_backend: str = "auto"
    preemption_mode: str = "auto"
    kv_host_cache_bytes: int = 0
    kv_disk_cache_dir: str | None = None
    kv_disk_cache_bytes: int = 0
    kv_load_policy: str = "auto"
    scheduling: str = "continuous"
    kv_reservation: str = "paged"
    enforce_eager: bool = False
    async_scheduling: bool | None = None

    def __post_init__(self) -> None:
        _check_range(
            "gpu_memory_utilization", self.gpu_memory_utilization, 0 < self.gpu_memory_utilization <= 1, "in (0, 1]"
        )
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "tensor_parallel_size"):
            _check_range(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        if self.max_model_len is not None:
            _check_range("max_model_len", self.max_model_len, self.max_model_len >= 2, "at least 2")
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("load_format", self.load_format, LOAD_FORMATS)
        _check_choice("device", self.device, DEVICES)
        self._check_offload()
        if self.tensor_parallel_size != 1:
            raise EngineError(
                f"the engine runs on one device: tensor_parallel_size {self.tensor_parallel_size} is not possible yet.",
                hint="`kvplan estimate --tp` sizes a tensor-parallel deployment",
            )
        _check_choice("kv_cache_dtype", self.kv_cache_dtype, tuple(KV_CACHE_DTYPES))

    def _check_offload(self) -> None:
        _check_choice("preemption_mode", self.preemption_mode, PREEMPTION_MODES)
        _check_choice("scheduling", self.scheduling, SCHEDULINGS)
        _check_choice("kv_reservation", self.kv_reservation, KV_RESERVATIONS)
        _check_choice("kv_load_policy", self.kv_load_policy, KV_LOAD_POLICIES)
        for name in ("swap_space", "kv_host_cache_bytes", "kv_disk_cache_bytes"):
            _check_range(name, getattr(self, name), getattr(self, name) >= 0, "0 or more bytes")
        if self.preemption_mode == "swap" and not self.swap_space:
            raise EngineError("preemption_mode 'swap' needs host memory.", hint="set swap_space, such as '1GiB'")
        if (self.kv_disk_cache_dir is None) != (self.kv_disk_cache_bytes == 0):
            raise EngineError(
                "a KV cache on disk needs a directory and a size.", hint="set kv_disk_cache_dir and kv_disk_cache_bytes"
            )
        if (self.kv_host_cache_bytes or self.kv_disk_cache_bytes) and not self.caches_prefixes:
            raise EngineError(
                "KV cache tiers hold what the prefix cache evicts, and the prefix cache is off.",
                hint="set enable_prefix_caching=True and kv_reservation='paged'",
            )

    def kv_dtype(self, model_dtype: str) -> str:
        """How K and V of a model in ``model_dtype`` are stored: the name of a torch dtype."""
        return model_dtype if self.kv_cache_dtype == "auto" else KV_CACHE_DTYPES[self.kv_cache_dtype]

    @property
    def caches_prefixes(self) -> bool:
        return self.enable_prefix_caching and self.kv_reservation == "paged"


def _check_range(name: str, value: Any, good: bool, text: str) -> None:
    if not good:
        raise EngineError(f"{name} must be {text}, got {value}.")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise EngineError(f"{name} '{value}' is not known.", hint="one of " + ", ".join(choices))
