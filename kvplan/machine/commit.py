"""The commit of the checkout that kvplan runs from, for the manifest."""

from __future__ import annotations

import subprocess
from pathlib import Path


def checkout_commit() -> str | None:
    """The commit hash, with ``-dirty`` if tracked files differ from it; None outside a git checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
