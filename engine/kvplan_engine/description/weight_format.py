"""How many bytes a weight takes that is held in few bits. No torch: a model that is only counted needs it too."""

from __future__ import annotations

from dataclasses import dataclass

_GROUPS = (256, 128, 64, 32, 16, 8)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Codes of ``bits`` (4 or 8), and what every group of ``group_size`` inputs of an output has besides.

    scale_bytes: 1 (a power of two), 2 or 4; minimums, where there are any, take the same. has_order: inputs are in an
    order of their own, 4 bytes for each.
    """

    bits: int
    group_size: int
    scale_bytes: int
    has_minimums: bool = False
    has_order: bool = False

    def num_bytes(self, num_outputs: int, num_inputs: int) -> int:
        """Of a weight [num_outputs, num_inputs], whose inputs fill whole groups."""
        groups = num_inputs // self.group_size * self.scale_bytes * (2 if self.has_minimums else 1)
        return num_outputs * (num_inputs * self.bits // 8 + groups) + (4 * num_inputs if self.has_order else 0)


def cut_group(group_size: int) -> int:
    """The longest group, at most ``group_size``, that the products take and that cuts it evenly; 0 where none does."""
    return next((size for size in _GROUPS if group_size % size == 0), 0)
