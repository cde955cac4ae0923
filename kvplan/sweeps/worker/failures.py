"""What a failed trial is recorded as."""

from __future__ import annotations

import errno

from kvplan.runs.columns import Row
from kvplan.sweeps.worker.protocol import Stage
from kvplan_engine import EngineError
from kvplan_engine.device.allocation import is_context_lost
from kvplan_engine.errors import OutOfDeviceMemory


def classify_failure(error: Exception, stage: Stage) -> Row | None:
    """Status columns of a failure that belongs to the trial; None for an unexpected one."""
    if is_context_lost(error):
        lines = str(error).strip().splitlines()
        return {"status": "crash", "error": f"The GPU no longer accepts work from this process: {lines[0]}"}
    if isinstance(error, EngineError):
        return {
            "status": error.status,
            "error": _sentence(error.message),
            "oom_phase": error.phase if isinstance(error, OutOfDeviceMemory) else None,
            "oom_requested_bytes": getattr(error, "requested_bytes", None),
            "oom_free_bytes": getattr(error, "free_bytes", None),
            "largest_max_model_len": getattr(error, "largest_tokens", None),
            "context_limited_by": getattr(error, "limited_by", None),
        }
    out_of_memory = isinstance(error, MemoryError) or "out of memory" in str(error).lower()
    out_of_memory |= "can't allocate memory" in str(error) or getattr(error, "errno", None) == errno.ENOMEM
    if not out_of_memory:
        return None
    phases = {"loading": "weights", "setup": "kv_init"}
    phase = phases.get(stage, "runtime")
    text = str(error).strip().splitlines()
    detail = text[0] if text else type(error).__name__
    return {"status": f"oom_{phase}", "oom_phase": phase, "error": f"Memory ran out: {detail}"}


def _sentence(text: str) -> str:
    """``text`` with a capital, unless it begins with the name of a setting."""
    first = text.partition(" ")[0]
    return text if "_" in first else text[:1].upper() + text[1:]
