"""Codes packed into int32 words, and what their scales and zero points become."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight, linear_book, packed_codes


def unpacked_words(words: torch.Tensor, bits: int, order: Sequence[int] | None = None) -> torch.Tensor:
    """int32 [rows, words] to uint8 [rows, words x 32 / bits], the lowest bits first.

    order: the column, of those of a word, that each of its codes belongs to; None: one after the other.
    """
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    codes = (words.unsqueeze(-1) >> shifts & (1 << bits) - 1).to(torch.uint8)
    if order is not None:
        codes = codes[..., torch.tensor(order).argsort()]
    return codes.flatten(1)


def from_codes(
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bits: int,
    group_size: int,
    order: torch.Tensor | None = None,
) -> QuantisedWeight:
    """codes uint8 [outputs, inputs]; scales, and zeros as codes, [outputs, groups]; zeros None: half of all codes.

    Values are (code - zero) x scale: in float32 the difference of two products, each of which is exact. group_size: a
    divisor of the published groups' length, in which they are cut.
    """
    pieces = codes.shape[1] // group_size // scales.shape[1]
    if zeros is None:
        minimums, zero = None, 1 << bits - 1
    else:
        minimums, zero = (-zeros.float() * scales.float()).repeat_interleave(pieces, dim=1), 0
    wide = scales.float().repeat_interleave(pieces, dim=1).contiguous()
    return QuantisedWeight(packed_codes(codes, bits), wide, minimums, linear_book(bits, zero), order)


def check_bits(bits: int, method: str) -> None:
    """EngineError for codes that are not of 4 or 8 bits."""
    if bits not in (4, 8):
        raise EngineError(f"{method} weights of {bits} bits are not loaded.", hint="those of 4 and 8 bits are")
