"""What a user should know of the kernels that a worker computes with: one line, before anything is measured."""

from __future__ import annotations

from kvplan.sweeps.worker.protocol import WITHOUT_KERNELS
from kvplan_engine.kernels.cpu.library import kernel_state
from kvplan_engine.models.device_kernels import REFERENCE


def cpu_kernels_notice() -> str | None:
    """Builds the CPU's kernels, if they are not there, and says what is not as usual about them; None for nothing."""
    state = kernel_state()
    if state.absence is not None:
        hint = f". hint: {state.absence.hint}" if state.absence.hint else ""
        return f"warning: no CPU kernels, because {state.absence.message}. {WITHOUT_KERNELS}{hint}"
    return None if state.notice is None else f"note: {state.notice}"


def unused_kernels_notice(kernels_name: str | None, dtype: str) -> str | None:
    """What to say where the CPU's kernels are there, and do not compute in the model's ``dtype``."""
    if kernels_name != REFERENCE or kernel_state().absence is not None:
        return None
    return f"warning: the CPU kernels do not compute in {dtype}. {WITHOUT_KERNELS}. hint: --dtype float32 or bfloat16"
