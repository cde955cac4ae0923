"""How the rows of a step are grouped for adapters. No torch: the workspace's sizes follow from it."""

from __future__ import annotations

ROWS_OF_A_GROUP = 8
"""Rows of one adapter that share a reading of its weights (kvplan_lora.h: KVPLAN_LORA_ROWS; lora.cuh: ROWS)."""


def most_groups(num_rows: int, max_loras: int) -> int:
    """The most groups that so many rows make: each adapter's last one may be short."""
    return num_rows // ROWS_OF_A_GROUP + min(max_loras, num_rows)
