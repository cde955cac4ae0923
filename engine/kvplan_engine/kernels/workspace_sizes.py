"""What kernels need of the workspace, whose sizes follow from it. No torch."""

from __future__ import annotations

# The memory for parts of prefill tiles on a CUDA device. No torch: the workspace's sizes follow from it.


PARTS_BYTES = 32 * 1024**2
"""Nearly twice what all blocks of an H100 leave (132 x 2 of 68 KiB), so that parts may come in two rounds."""


# How the rows of a step are grouped for adapters. No torch: the workspace's sizes follow from it.


ROWS_OF_A_GROUP = 8
"""Rows of one adapter that share a reading of its weights (kvplan_lora.h: KVPLAN_LORA_ROWS; lora.cuh: ROWS)."""


def most_groups(num_rows: int, max_loras: int) -> int:
    """The most groups that so many rows make: each adapter's last one may be short."""
    return num_rows // ROWS_OF_A_GROUP + min(max_loras, num_rows)
