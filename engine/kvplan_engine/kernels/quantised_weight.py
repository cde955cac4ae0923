"""A weight in few bits: codes, a scale for every group of inputs, and what a code stands for.

All formats that are read become this one (``checkpoints/quantised``), so there is one product to write for each device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

LARGEST_GROUP = 256
"""Inputs that share a scale, at most; longer groups are cut, each piece with the same scale."""


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """Element [o, k] is ``book[code[o, k]] * scales[o, g] + minimums[o, g]`` for the group g of input k.

    codes: uint8 [num_outputs, num_inputs x bits / 8]; of 4 bits an even input is the lower half of a byte, the next one
    the upper; of 6 bits so the lower 4 of all inputs, then the upper 2, four inputs in a byte, the first lowest. scales
    [num_outputs, num_groups] float16, float32, uint8 for powers of two (E8M0), or int8; groups are equally long, a
    multiple of 8. minimums: as scales, or None; none beside powers of two. book: float32 [16], [64] or [256]. order:
    int32 [num_inputs], the input of x that belongs to each input of the weight; None: its own. rounds_inputs:
    where a device multiplies codes like these, x is rounded to such too. block_scales: beside int8, float16
    [num_outputs, num_blocks, 1, or 2 with minimums], what scales, and minimums, of equally many groups are multiplied
    with; None elsewhere.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor | None
    book: torch.Tensor
    order: torch.Tensor | None = None
    rounds_inputs: bool = False
    block_scales: torch.Tensor | None = None

    @property
    def bits(self) -> int:
        return bits_of(self.book)

    @property
    def num_outputs(self) -> int:
        return self.codes.shape[0]

    @property
    def num_inputs(self) -> int:
        return self.codes.shape[1] * 8 // self.bits

    @property
    def group_size(self) -> int:
        return self.num_inputs // self.scales.shape[1]

    @property
    def zero(self) -> int | None:
        """The code that stands for 0 where codes count evenly; None where the book has to be looked up."""
        zero = -int(self.book[0])
        even = torch.arange(self.book.numel(), dtype=torch.float32, device=self.book.device) - zero
        return zero if torch.equal(self.book, even) else None

    @property
    def wide_scales(self) -> torch.Tensor:
        """float32 [num_outputs, num_groups]; a power of two that is none (255) is no number."""
        if self.scales.dtype is torch.uint8:
            return self.scales.view(torch.float8_e8m0fnu).float()
        return self._of_blocks(self.scales, 0)

    @property
    def wide_minimums(self) -> torch.Tensor | None:
        """The same of minimums."""
        return None if self.minimums is None else self._of_blocks(self.minimums, 1)

    def _of_blocks(self, values: torch.Tensor, kind: int) -> torch.Tensor:
        """Return the blocks' values in float32, where the product of an integer of 8 bits and a float16 is exact."""
        if self.block_scales is None:
            return values.float()
        groups = values.shape[1] // self.block_scales.shape[1]
        return values.float() * self.block_scales[:, :, kind].float().repeat_interleave(groups, dim=1)

    @property
    def multiplies_integers(self) -> bool:
        """Whether x is rounded to integers of 8 bits, a scale for each group: where codes count evenly."""
        return self.rounds_inputs and self.zero is not None

    @property
    def num_bytes(self) -> int:
        """Bytes of codes, scales, minimums and order: what the weight takes, however it is laid out."""
        parts = (self.codes, self.scales, self.minimums, self.order, self.block_scales)
        return sum(part.nbytes for part in parts if part is not None)

    def dequantised(self) -> torch.Tensor:
        """float32 [num_outputs, num_inputs], the inputs in the order of x."""
        wide = self.book[unpacked_codes(self.codes, self.bits).long()].unflatten(1, (-1, self.group_size))
        wide = wide * self.wide_scales.unsqueeze(2)
        if (minimums := self.wide_minimums) is not None:
            wide += minimums.unsqueeze(2)
        if self.order is None:
            return wide.flatten(1)
        return torch.empty_like(wide.flatten(1)).index_copy_(1, self.order.long(), wide.flatten(1))

    def with_rows(self, arrange: Callable[[torch.Tensor], torch.Tensor]) -> QuantisedWeight:
        """Its rows as ``arrange`` orders, or takes from, rows of any tensor [num_outputs, ...]."""

        def arranged(part: torch.Tensor | None) -> torch.Tensor | None:
            return None if part is None else arrange(part).contiguous()

        codes, scales = (arrange(part).contiguous() for part in (self.codes, self.scales))
        minimums, block_scales = arranged(self.minimums), arranged(self.block_scales)
        return replace(self, codes=codes, scales=scales, minimums=minimums, block_scales=block_scales)

    @property
    def plain(self) -> QuantisedWeight:
        """The same values with codes of 4 or 8 bits and without ``block_scales``: for devices that know no others."""
        wide = self
        if self.bits == 6:
            codes, zero = unpacked_codes(self.codes, 6), -int(self.book[0])
            wide = replace(self, codes=codes, book=linear_book(8, zero).to(self.book.device))
        if self.block_scales is None:
            return wide
        return replace(wide, scales=self.wide_scales, minimums=self.wide_minimums, block_scales=None)

    def scaled(self, scaling: Callable[[torch.Tensor], torch.Tensor]) -> QuantisedWeight:
        """Its values as ``scaling`` multiplies rows [num_outputs, ...] with a factor each; the scales are float32."""
        minimums = None if (wide := self.wide_minimums) is None else scaling(wide)
        return replace(self, scales=scaling(self.wide_scales), minimums=minimums, block_scales=None)

    def can_follow(self, other: QuantisedWeight) -> bool:
        """Whether its rows may stand below ``other``'s in one weight."""
        return self.is_alike(other) and _same_order(self.order, other.order)

    def is_alike(self, other: QuantisedWeight) -> bool:
        """Whether it is of ``other``'s format and has as many inputs, perhaps in another order."""
        return (
            torch.equal(self.book, other.book)
            and self.scales.shape[1:] == other.scales.shape[1:]
            and self.scales.dtype == other.scales.dtype
            and (self.minimums is None) == (other.minimums is None)
            and self.rounds_inputs == other.rounds_inputs
            and (self.order is None) == (other.order is None)
            and _blocks(self) == _blocks(other)
        )


def stacked(parts: list[QuantisedWeight]) -> QuantisedWeight:
    """One weight of the parts' rows, for parts that can follow one another."""
    if len(parts) == 1:
        return parts[0]
    minimums = [part.minimums for part in parts if part.minimums is not None]
    block_scales = [part.block_scales for part in parts if part.block_scales is not None]
    return replace(
        parts[0],
        codes=torch.cat([part.codes for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        minimums=torch.cat(minimums) if minimums else None,
        block_scales=torch.cat(block_scales) if block_scales else None,
    )


def bits_of(book: torch.Tensor) -> int:
    """Return the bits of a code that ``book`` explains."""
    return book.numel().bit_length() - 1


def linear_book(bits: int, zero: int) -> torch.Tensor:
    """The book of codes that count evenly, ``zero`` standing for 0."""
    return torch.arange(2**bits, dtype=torch.float32) - zero


def packed_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """codes uint8 [rows, inputs], one in each byte, as ``QuantisedWeight`` holds them."""
    if bits == 8:
        return codes.contiguous()
    if bits == 4:
        return codes[:, 0::2] | codes[:, 1::2] << 4
    quarters = (codes >> 4).unflatten(1, (-1, 4))
    upper = quarters[..., 0] | quarters[..., 1] << 2 | quarters[..., 2] << 4 | quarters[..., 3] << 6
    return torch.cat([packed_codes(codes & 15, 4), upper], dim=1)


def unpacked_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse: one code in each byte."""
    if bits == 8:
        return codes
    if bits == 4:
        return torch.stack([codes & 15, codes >> 4], dim=2).flatten(1)
    lower, upper = codes.split([codes.shape[1] // 3 * 2, codes.shape[1] // 3], dim=1)
    quarters = torch.stack([upper & 3, upper >> 2 & 3, upper >> 4 & 3, upper >> 6], dim=2).flatten(1)
    return unpacked_codes(lower, 4) | quarters << 4


def _blocks(weight: QuantisedWeight) -> tuple[int, ...] | None:
    """Return how many block scales a row has."""
    return None if weight.block_scales is None else tuple(weight.block_scales.shape[1:])


def _same_order(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


# What weights in few bits are multiplied with where it is rounded too (products/rounded/rounded_rows.h), plainly.


LARGEST_CODE = 127
_LEAST = 2.0**-100
"""A group whose largest magnitude is less counts as zeros: 127 / it would leave float32."""


def rounded_inputs(x: torch.Tensor, weight: QuantisedWeight) -> torch.Tensor:
    """x [T, num_inputs] as ``weight`` is multiplied with it: itself where nothing is rounded, otherwise float32.

    Each row's inputs of a group of the weight, in its order, become integers times a scale: their largest magnitude
    / 127, integers to the nearest, ties to even. A NaN where one of them is not finite.
    """
    if not weight.multiplies_integers:
        return x
    order = slice(None) if weight.order is None else weight.order.long()
    groups = x.float()[:, order].unflatten(1, (-1, weight.group_size))
    largest = groups.abs().amax(dim=-1, keepdim=True)
    scales = torch.where(largest.isfinite(), torch.where(largest < _LEAST, 0.0, largest / LARGEST_CODE), torch.nan)
    inverses = torch.full_like(largest, LARGEST_CODE) / largest  # of a scalar torch would multiply with a reciprocal
    integers = torch.where(scales > 0, groups * inverses, 0.0).round()
    rounded = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    rounded[:, order] = (integers * scales).flatten(1)
    return rounded
