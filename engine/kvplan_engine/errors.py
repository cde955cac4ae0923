"""What a user of the engine can run into: each is one sentence, with a hint where there is a way out."""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine refuses or fails at because of its input or its device.

    ``status`` is the word a sweep records for it.
    """

    status = "crash"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


# The word that a sweep records, where it is not the phase itself: a start that failed is a start that failed.
_STATUS_OF_PHASE = {"graph_capture": "oom_kv_init"}


class OutOfDeviceMemory(EngineError):
    """The device's memory is used up. ``phase`` says when: ``weights``, ``kv_init``, ``graph_capture`` or ``runtime``.

    requested_bytes: what was asked for, where known. free_bytes: what was left, where known.
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
    """One sequence of ``max_model_len`` tokens does not fit the KV pool (or the model's positions)."""

    status = "rejected_ctx"

    def __init__(self, message: str, *, requested_tokens: int, largest_tokens: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.requested_tokens = requested_tokens
        self.largest_tokens = largest_tokens


class CudaOutOfMemory(EngineError):
    """The CUDA driver itself refused memory (for a module, a graph, a launch). ``allocating`` says in which phase."""

    status = "oom_runtime"
