"""Pages of integers with scales: codes of one byte, and behind them the float32 scales, aligned. No torch.

keys of 2 heads of 3 tokens of 5 values     30 codes | 2 bytes unused | 6 scales, 24 bytes
"""

from __future__ import annotations

SCALE_BYTES = 4


def scales_offset(num_codes: int) -> int:
    """Bytes from a page's codes to its scales."""
    return -(-num_codes // SCALE_BYTES) * SCALE_BYTES


def scaled_page_bytes(num_codes: int, num_scales: int) -> int:
    """Bytes of a page; a multiple of those of a scale, as all pages beside it are."""
    return scales_offset(num_codes) + num_scales * SCALE_BYTES
