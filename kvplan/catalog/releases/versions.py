"""Releases as engines print them (``0.19.2rc1.dev206+g9599``), and as numbers."""

from __future__ import annotations

import re
from typing import Final

Number = tuple[int, int, int]
"""(major, minor, patch)."""

_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?", re.ASCII)


def release_number(version: str) -> Number | None:
    """Return (0, 4, 3) of ``0.4.3.post2``; None of ``latest`` and of what is no number, which stand for the newest."""
    match = _VERSION.match(version.strip().lower())
    if match is None:
        return None
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch


def release_text(number: Number) -> str:
    """Return ``0.19.0`` of (0, 19, 0)."""
    return ".".join(map(str, number))
