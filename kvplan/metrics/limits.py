"""The settings that a running server tells of itself: how many seats it has, how many tokens a step takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from kvplan.foreign_text import printable


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """None: not told. max_num_seqs: sequences per step; max_num_batched_tokens: tokens per step.

    kernels: of kvplan's engine, as in the column of this name. device, device_memory_bytes, dtype: what kvplan's own
    server computes on, how much memory it has of that, and in which type.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    version: str | None = None
    kernels: str | None = None
    device: str | None = None
    device_memory_bytes: int | None = None
    dtype: str | None = None

    def filled_from(self, other: ServerLimits) -> ServerLimits:
        """These limits, with what they lack taken from ``other``."""
        own, others = asdict(self), asdict(other)
        return ServerLimits(**{name: own[name] or others[name] for name in own})


UNKNOWN_LIMITS: Final = ServerLimits()
"""Of a server that tells none."""

LIMIT_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "kvplan": ("/server_info?config_format=json",),
    "vllm": ("/server_info?config_format=json",),  # with VLLM_SERVER_DEV_MODE=1
    "sglang": ("/server_info", "/get_server_info"),
    "llamacpp": ("/props",),
}
"""Where an engine tells its settings, the newest path first."""

# The names under which engines tell them: vLLM's, SGLang's, llama.cpp's.
_SEATS: Final = ("max_num_seqs", "max_running_requests", "total_slots")
_STEP_TOKENS: Final = ("max_num_batched_tokens", "chunked_prefill_size")
_KERNELS: Final = re.compile(r"[a-z0-9-]{1,32}")  # another server may mean anything by the word
_DEVICES: Final = ("cpu", "cuda")
_DTYPES: Final = ("float32", "bfloat16", "float16")
_LARGEST: Final = 2**53
"""More is no setting of a server."""
_LONGEST_VERSION: Final = 100
_CONTEXT: Final = ("max_model_len", "context_length", "n_ctx")


def limits_in(document: object) -> ServerLimits:
    """Whatever of the limits stands in a JSON document, at any depth: engines move these fields between releases."""
    found: dict[str, Any] = {}
    for name, value in _entries(document):
        found.setdefault(name, value)
    version = found.get("version") or found.get("vllm_version") or found.get("build_info")
    kernels = found.get("kernels")
    return ServerLimits(
        _first_count(found, _SEATS),
        _first_count(found, _STEP_TOKENS),
        _first_count(found, _CONTEXT),
        printable(version[:_LONGEST_VERSION]) if isinstance(version, str) else None,
        kernels if isinstance(kernels, str) and _KERNELS.fullmatch(kernels) else None,
        **_own_server(document),
    )


def _own_server(document: object) -> dict[str, Any]:
    """What kvplan's server says under ``model`` and ``memory``; nothing for another document."""
    told = document if isinstance(document, Mapping) else {}
    model, memory = told.get("model"), told.get("memory")
    if not isinstance(model, Mapping) or not isinstance(memory, Mapping):
        return {}
    device, dtype = (model.get(name) for name in ("device", "dtype"))
    kind = device.partition(":")[0] if isinstance(device, str) else None
    return {
        "device": kind if kind in _DEVICES else None,
        "device_memory_bytes": _first_count(memory, ("device_total_bytes",)),
        "dtype": dtype if dtype in _DTYPES else None,
    }


def _entries(document: object) -> Iterator[tuple[str, Any]]:
    """The plain values of a document by name, those at the top first."""
    if isinstance(document, Mapping):
        yield from ((str(name), value) for name, value in document.items() if not isinstance(value, dict | list))
        for value in document.values():
            yield from _entries(value)
    elif isinstance(document, list):
        for value in document:
            yield from _entries(value)


def _first_count(found: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = found.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LARGEST:
            return value
    return None
