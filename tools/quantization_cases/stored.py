"""What one matrix takes in a format: packed weights, scales, zero points, constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Stored:
    """A format. ``size``: weights that share a scale ("group"), or the side of a tile that does ("tile")."""

    bits: int
    per: Literal["group", "tile", "row", "matrix"]
    size: int = 0
    scale_bytes: int = 4
    zero_bits: int = 0
    constant_bytes: int = 0

    def num_bytes(self, rows: int, inputs: int) -> int:
        """Bytes of a matrix with so many outputs and inputs."""
        if self.per == "group":
            scales = rows * (inputs // self.size)
        elif self.per == "tile":
            scales = -(-rows // self.size) * -(-inputs // self.size)
        else:
            scales = rows if self.per == "row" else 1
        packed_bits = rows * inputs * self.bits + scales * self.zero_bits
        return packed_bits // 8 + scales * self.scale_bytes + self.constant_bytes


MXFP4 = Stored(4, "group", 32, scale_bytes=1)
MXFP8 = Stored(8, "group", 32, scale_bytes=1)
NVFP4 = Stored(4, "group", 16, scale_bytes=1, constant_bytes=4)
NVFP4_STATIC = Stored(4, "group", 16, scale_bytes=1, constant_bytes=8)
FP8_MATRIX = Stored(8, "matrix")
FP8_STATIC = Stored(8, "matrix", constant_bytes=4)
FP8_ROW = Stored(8, "row")
FP8_TILE = Stored(8, "tile", 128)
MODELOPT = {"FP8": FP8_STATIC, "FP8_PER_CHANNEL_PER_TOKEN": FP8_ROW, "FP8_PB_WO": FP8_TILE, "NVFP4": NVFP4_STATIC,
            "W4A16_NVFP4": NVFP4, "MXFP8": MXFP8}  # fmt: skip


def integers(bits: int, size: int, *, zeros: bool, scale_bytes: int = 2) -> Stored:
    """Packed integers with groups of ``size``; -1: a scale per output."""
    zero_bits = bits if zeros else 0
    if size < 1:
        return Stored(bits, "row", scale_bytes=scale_bytes, zero_bits=zero_bits)
    return Stored(bits, "group", size, scale_bytes=scale_bytes, zero_bits=zero_bits)
