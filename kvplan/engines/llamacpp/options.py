"""llama-server's options: from settings, with those that the user gave in front; and what they mean for memory.

llama.cpp has slots instead of a pool: ``--parallel`` of them, with ``--ctx-size`` tokens for all together. So
``max_num_seqs`` slots of ``max_model_len`` tokens need a context of their product, padded slot by slot. Where
``kv_cache_memory_bytes`` says how large the cache is, the slots share it (``--kv-unified``), each up to its length.
tools/server/README.md and common/arg.cpp, b11434.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.llamacpp import (
    DEFAULT_BATCH,
    DEFAULT_PHYSICAL_BATCH,
    PADDING,
    LlamaServerSettings,
    predict_llamacpp,
)
from kvplan.runs.trials import TrialSettings

Options = dict[str, str]
"""By their long names; "" for a flag."""

_LONG_NAMES: Final[Mapping[str, str]] = {
    "c": "ctx-size",
    "np": "parallel",
    "b": "batch-size",
    "ub": "ubatch-size",
    "ctk": "cache-type-k",
    "ctv": "cache-type-v",
    "kvu": "kv-unified",
    "no-kvu": "no-kv-unified",
    "lv": "log-verbosity",
    "verbosity": "log-verbosity",
    "fa": "flash-attn",
    "a": "alias",
}
_NOT_TO_GIVE: Final = ("model", "m", "host", "port", "alias")
_CACHE_TYPES: Final[Mapping[str, str]] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# The verbosity from which on it prints what it allocates.
_VERBOSITY: Final = "4"


def user_options(arguments: Mapping[str, str]) -> Options:
    """``--engine-arg`` by long names. UsageError for what a sweep sets itself."""
    for name in _NOT_TO_GIVE:
        if name in arguments:
            raise UsageError(f"--engine-arg {name} is set by the sweep.", hint="leave it out")
    return {_LONG_NAMES.get(name, name): value for name, value in arguments.items()}


def server_options(settings: TrialSettings, given: Mapping[str, str], spec: ModelSpec | None = None) -> Options:
    """The options of one start, without model, address and name. UsageError for a KV dtype that it does not have.

    spec: needed where the settings say how many bytes the cache has.
    """
    options: Options = {
        "parallel": str(settings.max_num_seqs),
        "ctx-size": str(settings.max_num_seqs * (-(-settings.max_model_len // PADDING) * PADDING)),
        "batch-size": str(settings.max_num_batched_tokens),
    }
    if settings.kv_cache_dtype != "auto":
        cache_type = cache_type_of(settings.kv_cache_dtype)
        options |= {"cache-type-k": cache_type, "cache-type-v": cache_type}
    if settings.enable_prefix_caching is False:
        options |= {"no-cache-prompt": "", "cache-ram": "0"}
    options |= {"metrics": "", "slots": "", "log-verbosity": _VERBOSITY}
    if settings.kv_cache_memory_bytes is None:
        return options | dict(given)
    assert spec is not None, "bytes are turned into tokens by the model"
    options |= {"kv-unified": "", "kv-unified-per-slot": str(settings.max_model_len)} | dict(given)
    tokens = largest_context(spec, settings_of(options), settings.kv_cache_memory_bytes)
    return options | {"ctx-size": given.get("ctx-size", str(tokens))}


def largest_context(spec: ModelSpec, asked: LlamaServerSettings, cache_bytes: int) -> int:
    """The largest context of a shared cache that takes at most ``cache_bytes``, in tokens; one padding at least."""
    each = max(predict_llamacpp(spec, replace(asked, context_tokens=PADDING)).bytes_per_token, 1)
    tokens = max(cache_bytes // each // PADDING, 1) * PADDING
    while (
        tokens > PADDING and predict_llamacpp(spec, replace(asked, context_tokens=tokens)).kv_cache_bytes > cache_bytes
    ):
        tokens -= PADDING
    return tokens


def cache_type_of(kv_cache_dtype: str) -> str:
    """llama.cpp's name of a KV dtype."""
    if kv_cache_dtype not in _CACHE_TYPES:
        hint = "float32, float16 or bfloat16; or --engine-arg cache-type-k=q8_0 --engine-arg cache-type-v=q8_0"
        raise UsageError(f"llama.cpp has no KV cache of {kv_cache_dtype}.", hint=hint)
    return _CACHE_TYPES[kv_cache_dtype]


def settings_of(options: Mapping[str, str]) -> LlamaServerSettings:
    """What the options mean for memory. UsageError where a number is none."""
    slots = _number(options, "parallel", -1)
    return LlamaServerSettings(
        num_slots=None if slots < 0 else slots,
        context_tokens=_number(options, "ctx-size", 0) or None,
        is_unified="kv-unified" in options,
        slot_tokens=_number(options, "kv-unified-per-slot", 0) or None,
        key_type=options.get("cache-type-k", "f16"),
        value_type=options.get("cache-type-v", "f16"),
        batch_tokens=_number(options, "batch-size", DEFAULT_BATCH),
        physical_batch_tokens=_number(options, "ubatch-size", DEFAULT_PHYSICAL_BATCH),
        keeps_windows_whole="swa-full" in options,
    )


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, "") or str(default)
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--engine-arg {name}={text} is no number.", hint=f"for example {name}=512") from None
