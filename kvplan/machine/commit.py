"""The commit of the checkout that kvplan runs from, for the manifest."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path


@cache
def checkout_commit() -> str | None:
    """Return the commit hash, with ``-dirty`` if tracked files differ from it; None outside a git checkout.

    Asked once by each process: what it runs was read by then.
    """
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
