"""The memory for parts of prefill tiles on a CUDA device. No torch: the workspace's sizes follow from it."""

from __future__ import annotations

PARTS_BYTES = 32 * 1024**2
"""Nearly twice what all blocks of an H100 leave (132 x 2 of 68 KiB), so that parts may come in two rounds."""
