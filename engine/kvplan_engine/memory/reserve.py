"""What a device's memory is before weights, workspace and KV pool, and what is kept of it. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reserve:
    """total_bytes: of the device. overhead_bytes: kept for what is no tensor; graph_bytes: for captured steps.

    Of several ranks: of the smallest device, and the most that one of them needs.
    """

    total_bytes: int
    overhead_bytes: int
    graph_bytes: int
