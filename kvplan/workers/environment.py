"""What the environment of a process says that runs another part of kvplan."""

from __future__ import annotations

import os
import sys


def same_imports() -> dict[str, str]:
    """This process's environment with its import path, so that another finds the same kvplan and the same engine."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
