"""This machine's processor, by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def cpu_name() -> str:
    """As the operating system gives it; ``CPU`` where it gives none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "CPU"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
