"""How many bytes a weight takes that is held in few bits. No torch: a model that is only counted needs it too."""

from __future__ import annotations

from dataclasses import dataclass, replace

_GROUPS = (256, 128, 64, 32, 16, 8)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Codes of ``bits`` (4, 6 or 8), and what every group of ``group_size`` inputs of an output has besides.

    scale_bytes: 1 (a power of two, or an integer), 2 or 4; minimums, where there are any, take the same. has_order:
    inputs are in an order of their own, 4 bytes for each. block_size: inputs that share a float16, which their integers
    are multiplied with, and one for their minimums; 0 where scales are no integers.
    """

    bits: int
    group_size: int
    scale_bytes: int
    has_minimums: bool = False
    has_order: bool = False
    block_size: int = 0

    def num_bytes(self, num_outputs: int, num_inputs: int) -> int:
        """Return the bytes of a weight [num_outputs, num_inputs], whose inputs fill whole groups and blocks."""
        beside = num_inputs // self.group_size * self.scale_bytes
        beside += 2 * (num_inputs // self.block_size) if self.block_size else 0
        beside *= 2 if self.has_minimums else 1
        return num_outputs * (num_inputs * self.bits // 8 + beside) + (4 * num_inputs if self.has_order else 0)

    @property
    def plain(self) -> WeightFormat:
        """The same weight for kernels that know 4 and 8 bits, and scales of one level: see QuantisedWeight.plain."""
        wide = replace(self, bits=8 if self.bits == 6 else self.bits)
        return replace(wide, scale_bytes=4, block_size=0) if self.block_size else wide


def cut_group(group_size: int) -> int:
    """The longest group, at most ``group_size``, that the products take and that cuts it evenly; 0 where none does."""
    return next((size for size in _GROUPS if group_size % size == 0), 0)
