"""Clients as programs: each with an environment of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def run_client(command: list[str], folder: Path | None = None, **environment: str) -> str:
    """What the client prints, run in ``folder``. SystemExit with the end of its output where it fails."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=inherited | environment, cwd=folder, timeout=900, check=False
    )
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)} failed: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
