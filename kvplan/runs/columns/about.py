"""What is said of each column beside its type."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    """What stands beside a column's type: its description, and its unit ('' for none)."""

    description: str
    unit: str = ""
