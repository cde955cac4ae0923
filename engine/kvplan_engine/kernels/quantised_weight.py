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
    the upper. scales [num_outputs, num_groups] float16, float32, or uint8 for powers of two (E8M0); groups are equally
    long, a multiple of 8. minimums: as scales, or None; none beside powers of two. book: float32 [16] or [256]. order:
    int32 [num_inputs], the input of x that belongs to each input of the weight; None: its own. rounds_inputs:
    where a device multiplies codes like these, x may be rounded to them too.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor | None
    book: torch.Tensor
    order: torch.Tensor | None = None
    rounds_inputs: bool = False

    @property
    def bits(self) -> int:
        return 4 if self.book.numel() == 16 else 8

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
        return (self.scales.view(torch.float8_e8m0fnu) if self.scales.dtype is torch.uint8 else self.scales).float()

    @property
    def num_bytes(self) -> int:
        """Of codes, scales, minimums and order: what the weight takes, however it is laid out."""
        parts = (self.codes, self.scales, self.minimums, self.order)
        return sum(part.nbytes for part in parts if part is not None)

    def dequantised(self) -> torch.Tensor:
        """float32 [num_outputs, num_inputs], the inputs in the order of x."""
        wide = self.book[unpacked_codes(self.codes, self.bits).long()].unflatten(1, (-1, self.group_size))
        wide = wide * self.wide_scales.unsqueeze(2)
        if self.minimums is not None:
            wide += self.minimums.float().unsqueeze(2)
        if self.order is None:
            return wide.flatten(1)
        return torch.empty_like(wide.flatten(1)).index_copy_(1, self.order.long(), wide.flatten(1))

    def with_rows(self, arrange: Callable[[torch.Tensor], torch.Tensor]) -> QuantisedWeight:
        """Its rows as ``arrange`` orders, or takes from, rows of any tensor [num_outputs, ...]."""
        minimums = None if self.minimums is None else arrange(self.minimums).contiguous()
        codes, scales = (arrange(part).contiguous() for part in (self.codes, self.scales))
        return replace(self, codes=codes, scales=scales, minimums=minimums)

    def scaled(self, scaling: Callable[[torch.Tensor], torch.Tensor]) -> QuantisedWeight:
        """Its values as ``scaling`` multiplies rows [num_outputs, ...] with a factor each; the scales are float32."""
        minimums = None if self.minimums is None else scaling(self.minimums.float())
        return replace(self, scales=scaling(self.wide_scales), minimums=minimums)

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
        )


def stacked(parts: list[QuantisedWeight]) -> QuantisedWeight:
    """One weight of the parts' rows, for parts that can follow one another."""
    if len(parts) == 1:
        return parts[0]
    minimums = [part.minimums for part in parts if part.minimums is not None]
    return replace(
        parts[0],
        codes=torch.cat([part.codes for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        minimums=torch.cat(minimums) if minimums else None,
    )


def linear_book(bits: int, zero: int) -> torch.Tensor:
    """The book of codes that count evenly, ``zero`` standing for 0."""
    return torch.arange(2**bits, dtype=torch.float32) - zero


def packed_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """codes uint8 [rows, inputs], one in each byte, as ``QuantisedWeight`` holds them."""
    return codes.contiguous() if bits == 8 else codes[:, 0::2] | codes[:, 1::2] << 4


def unpacked_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse: one code in each byte."""
    return codes if bits == 8 else torch.stack([codes & 15, codes >> 4], dim=2).flatten(1)


def _same_order(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
