"""How many bytes a weight takes that is held in few bits. No torch: a model that is only counted needs it too."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

# The formats that weights can be quantised to when they are loaded, by the names of ``--quantization``. No torch.


Codes = Literal["int4", "int8", "e2m1", "nf4", "e4m3"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Rounding to the nearest code. group_size: inputs that share a scale; 0: a whole row.

    codes: what they stand for. scale: of what a scale is; "power": of a group, a power of two in a byte; "block": of
    128 x 128 values. has_minimums: codes count from the group's least value on instead of around 0.
    """

    codes: Codes
    group_size: int
    scale: Literal["group", "power", "block", "tensor"] = "group"
    has_minimums: bool = False
    has_order: bool = False

    def format_of(self, num_inputs: int) -> WeightFormat | None:
        """How a weight of so many inputs is held; None where its inputs cannot be cut into groups."""
        group = cut_group(num_inputs if self.group_size == 0 else math.gcd(num_inputs, self.group_size))
        bits = 8 if self.codes in ("int8", "e4m3") else 4
        scale_bytes = 1 if self.scale == "power" else 4
        return WeightFormat(bits, group, scale_bytes, self.has_minimums, self.has_order) if group else None


RECIPES = {
    "fp8": Recipe("e4m3", 0, "tensor"),
    "fp8-block": Recipe("e4m3", 128, "block"),
    "int8": Recipe("int8", 0),
    "awq": Recipe("int4", 128, has_minimums=True),
    "gptq": Recipe("int4", 128, has_minimums=True, has_order=True),
    "int4": Recipe("int4", 128),
    "mxfp4": Recipe("e2m1", 32, "power"),
    "nvfp4": Recipe("e2m1", 16),
    "bitsandbytes": Recipe("nf4", 64),
}


def recipe_of(name: str, group_size: int | None = None) -> Recipe:
    """The recipe ``name`` of RECIPES. group_size: instead of its own; -1: a whole row."""
    recipe = RECIPES[name]
    return recipe if group_size is None else replace(recipe, group_size=max(group_size, 0))


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
