"""The errors that a user of the engine can meet: each is one sentence, with a hint if there is a way out."""

from __future__ import annotations

import signal
from typing import Literal

_LONGEST_NAME = 100


class EngineError(Exception):
    """Base of every error that is due to the input or the device. status: the word that a sweep records for it."""

    status = "crash"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SettingsError(EngineError):
    """Settings that contradict each other, or that no device could give the model: other ones are the way out."""


# Statuses that are not named after the phase: a sweep counts both as a start that failed.
_STATUS_OF_PHASE = {"graph_capture": "oom_kv_init", "kv_host": "oom_kv_init"}


class OutOfDeviceMemory(EngineError):
    """The device is out of memory.

    phase: "weights", "kv_init", "kv_host", "graph_capture" or "runtime". requested_bytes, free_bytes: what was
    requested and what was left, if known.
    """

    def __init__(
        self,
        message: str,
        *,
        phase: str,
        requested_bytes: int | None = None,
        free_bytes: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.phase = phase
        self.requested_bytes = requested_bytes
        self.free_bytes = free_bytes

    @property
    def status(self) -> str:  # type: ignore[override]
        return _STATUS_OF_PHASE.get(self.phase, f"oom_{self.phase}")


class ContextTooLong(EngineError):
    """One sequence of ``max_model_len`` tokens does not fit the KV pool, or exceeds the model's positions.

    limited_by: which of the two; largest_tokens is that limit.
    """

    status = "rejected_ctx"

    def __init__(
        self,
        message: str,
        *,
        requested_tokens: int,
        largest_tokens: int,
        limited_by: Literal["pool", "model"] = "pool",
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.requested_tokens = requested_tokens
        self.largest_tokens = largest_tokens
        self.limited_by = limited_by


class RankDied(EngineError):
    """A process that computes a part of every layer has ended. rank: its number.

    The engine cannot go on: its other ranks have been ended too.
    """

    status = "rank_died"

    def __init__(self, message: str, *, rank: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.rank = rank


class CudaOutOfMemory(EngineError):
    """The CUDA driver is out of memory (for a module, a graph, a launch); ``allocating`` adds the phase."""

    status = "oom_runtime"


def describe_exit(code: int) -> str:
    """How a process with this return code ended: what follows its name in a sentence."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # most real-time signals have no name of their own
        return f"was ended by signal {-code}"


def shown(name: object) -> str:
    """A name from somebody's file in a sentence: in quotes, without control characters, cut where it is long."""
    text = ascii(str(name)[: _LONGEST_NAME + 1])
    return text if len(str(name)) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}...'"
