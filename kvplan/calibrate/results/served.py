"""What was measured: the model, device, engine and settings, as a result's file says it and options add to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from kvplan.errors import KvplanError, UsageError


@dataclass(frozen=True, slots=True)
class ServedDeployment:
    """None: nobody said so. cpu_name, num_cores: where gpu is ``cpu``. num_blocks: of the KV pool."""

    model: str | None = None
    gpu: str | None = None
    cpu_name: str | None = None
    num_cores: int | None = None
    engine: str | None = None
    engine_version: str | None = None
    tensor_parallel_size: int | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None

    def with_values(self, **values: Any) -> ServedDeployment:
        """Another with these of its fields; what is None changes nothing."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    def completed_by(self, options: ServedDeployment, source: str) -> ServedDeployment:
        """With what ``options`` say of the rest. KvplanError where both say it and differ.

        The model's name is the options', because a file may have the name that it was served under.
        """
        for name in _COMPARED:
            told, given = getattr(self, name), getattr(options, name)
            if None not in (told, given) and told != given:
                option = "--tp" if name == "tensor_parallel_size" else "--" + name.replace("_", "-")
                raise KvplanError(
                    f"{source} says {name} {told}, but {option} says {given}.", hint=f"leave {option} out"
                )
        said = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}
        return replace(options, **{**said, "model": options.model or self.model})


_NAMES: Final = {
    "model": "model",
    "gpu": "gpu",
    "device_name": "gpu",
    "engine": "engine",
    "engine_version": "engine_version",
    "version": "engine_version",
    "tensor_parallel_size": "tensor_parallel_size",
    "tp": "tensor_parallel_size",
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "block_size": "block_size",
}
"""Keys that people give a benchmark as metadata, and options that a sweep of servers writes into its results."""
_WHOLE: Final = ("tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")
_COMPARED: Final = ("engine", "dtype", *_WHOLE)
_UNSAID: Final = (None, "", "auto")


def served_by(document: Mapping[str, Any], source: str) -> ServedDeployment:
    """What the keys of ``document`` say, with hyphens or underscores. KvplanError for a number that is none."""
    said: dict[str, Any] = {}
    for key, value in document.items():
        name = _NAMES.get(str(key).replace("-", "_"))
        if name is not None and value not in _UNSAID:
            said[name] = _typed(name, value, source)
    return ServedDeployment(**said)


def _typed(name: str, value: object, source: str) -> object:
    if name not in (*_WHOLE, "gpu_memory_utilization"):
        return str(value)
    try:
        number = int(str(value)) if name in _WHOLE else float(str(value))
    except ValueError as error:
        raise KvplanError(
            f"{source} says {name} '{value}', which is not a number.", hint="correct it in the file"
        ) from error
    if not 0 < number < math.inf:
        raise KvplanError(
            f"{source} says {name} '{value}', which is not a number above 0.", hint="correct it in the file"
        )
    return number


def demand(value: str | None, what: str, option: str, source: str) -> str:
    """``value``, or the sentence that says which option is missing."""
    if value is None:
        raise UsageError(f"{source} does not say {what}.", hint=f"add {option}")
    return value
