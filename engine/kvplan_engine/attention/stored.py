"""Keys and values as a pool stores them, and back, in plain torch."""

from __future__ import annotations

import torch

LARGEST_CODE = 127


def write_rows(rows: torch.Tensor, pages: torch.Tensor, scales: torch.Tensor | None, slots: torch.Tensor) -> None:
    """Store ``rows`` [T, hkv, d] at ``slots`` [T] of ``pages`` [num_blocks, hkv, bs, d]; scales: of an int8 pool."""
    blocks = torch.div(slots, pages.shape[2], rounding_mode="floor")
    offsets = slots % pages.shape[2]
    if scales is None:
        bytes_of(pages)[blocks, :, offsets] = bytes_of(_rounded(rows, pages.dtype))
    else:
        pages[blocks, :, offsets], scales[blocks, :, offsets] = quantised(rows)


def read_blocks(
    pages: torch.Tensor, scales: torch.Tensor | None, blocks: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """The values [hkv, n * bs, d] in ``blocks`` [n] of ``pages``, one block behind the other, in ``dtype``."""
    found = bytes_of(pages)[blocks.long()].view(pages.dtype)
    if scales is None:
        return found.transpose(0, 1).flatten(1, 2).to(dtype)
    exact = found.double() * scales[blocks.long()][..., None]
    return exact.transpose(0, 1).flatten(1, 2).to(dtype)


def quantised(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers [..., d] int8 of ``rows`` [..., d], and their scales [...] float32: values are integer * scale.

    A scale is the largest magnitude / 127; integers are rounded to nearest, ties to even, and all 0 where the scale is
    0, and where a value is not finite, which makes the scale a NaN.
    """
    values = rows.float()
    largest = values.abs().amax(dim=-1)
    scales = torch.where(largest.isfinite(), largest / LARGEST_CODE, torch.nan)
    steps = torch.where((scales > 0)[..., None], values / scales[..., None], 0.0)
    return steps.clamp(-LARGEST_CODE, LARGEST_CODE).round().to(torch.int8), scales


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or its bytes where torch cannot index its dtype."""
    return tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor


def _rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``tensor`` in ``dtype``: fp8 holds no more than 448 and, as torch converts to it, would make that NaN."""
    if dtype is torch.float8_e4m3fn:
        limit = torch.finfo(dtype).max
        tensor = tensor.clamp(-limit, limit)
    return tensor.to(dtype)
