"""The formats that weights can be quantised to when they are loaded, by the names of ``--quantization``. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from kvplan_engine.description.weight_format import WeightFormat, cut_group

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
