"""Names and values of engines' options: which setting each is, and how the engine reads what follows it.

Options are vLLM's (vllm/engine/arg_utils.py) and, for start-up logs, SGLang's (srt/server_args.py).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from kvplan.paths import profiles_dir
from kvplan.settings import KNOBS
from kvplan.units import parse_bytes

OptionKind = Literal["flag", "list", "value"]

_OPTION_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "gpu_memory_utilization": ("gpu-memory-utilization", "device-memory-utilization", "mem-fraction-static"),
    "max_model_len": ("max-model-len", "context-length"),
    "max_num_batched_tokens": ("max-num-batched-tokens", "chunked-prefill-size"),
    "max_num_seqs": ("max-num-seqs", "max-running-requests"),
    "tensor_parallel_size": ("tensor-parallel-size", "tp-size", "tp"),
    "pipeline_parallel_size": ("pipeline-parallel-size", "pp-size", "pp"),
    "data_parallel_size": ("data-parallel-size", "dp-size", "dp", "attn-dp-size", "attention-data-parallel-size"),
    "decode_context_parallel_size": ("decode-context-parallel-size", "dcp-size", "dcp"),
    "kv_cache_memory_bytes": ("kv-cache-memory-bytes", "kv-cache-memory"),
    "block_size": ("block-size",),
    "kv_cache_dtype": ("kv-cache-dtype",),
    "dtype": ("dtype",),
    "quantization": ("quantization",),
    "moe_backend": ("moe-backend",),
    "cpu_offload_gb": ("cpu-offload-gb",),
    "limit_mm_per_prompt": ("limit-mm-per-prompt",),
    "max_loras": ("max-loras",),
    "max_lora_rank": ("max-lora-rank",),
    "num_speculative_tokens": (
        "num-speculative-tokens",
        "spec-tokens",
        "speculative-config.num_speculative_tokens",
        "speculative-config.num-speculative-tokens",
    ),
    "speculative_model": ("spec-model", "speculative-model"),
    "speculative_method": ("spec-method",),
    "model": ("model-path", "model"),
}
"""Names of options without their dashes."""
FLAGS: Final[dict[str, tuple[str, bool]]] = {
    "enforce-eager": ("enforce_eager", True),
    "disable-cuda-graph": ("enforce_eager", True),
    "enable-prefix-caching": ("enable_prefix_caching", True),
    "no-enable-prefix-caching": ("enable_prefix_caching", False),
    "disable-radix-cache": ("enable_prefix_caching", False),
    "language-model-only": ("language_model_only", True),
    "skip-mm-profiling": ("skip_mm_profiling", True),
    "enable-lora": ("enable_lora", True),
    "enable-expert-parallel": ("enable_expert_parallel", True),
    "ep": ("enable_expert_parallel", True),
    "ep-size": ("enable_expert_parallel", True),
}
SETTING_OF: Final = {option: name for name, options in _OPTION_NAMES.items() for option in options}
NO: Final = ("false", "0", "1", "no")
"""Values of a flag that switch it off; one group of experts is none."""
_UNSAID: Final = ("auto", "None", "none", "null")
_WHOLE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)([kKmMgGtT]?)")
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """Every option of ``vllm serve``, without its dashes. ``unmodelled``: those that may matter, and are not read."""

    kinds: dict[str, OptionKind]
    short: dict[str, str]
    unmodelled: frozenset[str]


@cache
def vllm_options() -> VllmOptions:
    """Return the options of all releases, as profiles/releases/vllm-options.json has them."""
    document = json.loads((profiles_dir() / "releases" / "vllm-options.json").read_text(encoding="utf-8"))
    kinds: dict[str, OptionKind] = dict.fromkeys(document["values"] + document["earlier_values"], "value")
    kinds |= dict.fromkeys(document["flags"] + document["earlier_flags"], "flag")
    kinds |= dict.fromkeys(document["lists"], "list")
    return VllmOptions(kinds, document["short"], frozenset(document["may_change_memory_or_speed"]))


def setting_value(name: str, text: str) -> Any:
    """Return the value of a setting as engines read it: ``32k`` is 32,000 and ``32K`` 32,768, as in vLLM.

    None where the text leaves it to the engine. ValueError for what is no such value, UsageError for one out of range.
    """
    knob = KNOBS[name]
    if knob.kind in ("share", "number"):
        read: Any = float(text)
    elif knob.kind == "name" or knob.kind == "text":
        read = None if text in _UNSAID else text
    else:
        read = _whole(text) if name != "kv_cache_memory_bytes" else _bytes(text)
    knob.check(read)
    return read


def _whole(text: str) -> int:
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a whole number.")
    number, unit = match.groups()
    return int(float(number) * (1024 if unit.isupper() else 1000) ** _POWERS[unit.lower()])


def _bytes(text: str) -> int:
    return _whole(text) if _WHOLE.fullmatch(text) else parse_bytes(text)
