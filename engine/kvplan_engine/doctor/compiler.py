"""Where NVRTC was found, in words that name no user: a report is pasted into an issue."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_SYSTEM = ("/usr/", "/opt/", "/lib")


def place_of(path: str) -> str:
    """``beside torch (nvidia/cu13/lib)``, the environment, a toolkit, a folder of the system, or the file's name."""
    file = Path(path)
    parts = file.parts
    if "site-packages" in parts or "dist-packages" in parts:
        name = "site-packages" if "site-packages" in parts else "dist-packages"
        below = parts[len(parts) - parts[::-1].index(name) :]
        return f"beside torch ({'/'.join(below[:-1])})"
    if file.is_relative_to(Path(sys.prefix) / "lib"):
        return "in the environment's lib"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        root = os.environ.get(variable)
        if root and file.is_relative_to(root):
            return f"in ${variable}"
    return path if path.startswith(_SYSTEM) else file.name
