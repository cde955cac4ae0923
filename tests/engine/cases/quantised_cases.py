"""Quantised weights of every kind that the kernels know, with random codes and scales."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.kernels.quantised_weight import QuantisedWeight, bits_of, linear_book

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0.0)
UNEVEN = torch.linspace(-1, 1, 16).sin()  # numbers that bfloat16 does not have


@dataclass(frozen=True)
class Kind:
    """One kind of format. book: what codes stand for."""

    name: str
    book: torch.Tensor
    group: int
    scale_dtype: torch.dtype = torch.float16
    has_minimums: bool = False
    has_order: bool = False

    def __str__(self) -> str:
        return self.name


KINDS = [
    Kind("q4_0", linear_book(4, 8), 32),
    Kind("q4_1", linear_book(4, 0), 32, has_minimums=True),
    Kind("q4_k", linear_book(4, 0), 32, torch.int8, has_minimums=True),
    Kind("act_order", linear_book(4, 0), 128, torch.float32, has_minimums=True, has_order=True),
    Kind("q8_0", linear_book(8, 128), 32),
    Kind("q6_k", linear_book(6, 32), 16, torch.int8),
    Kind("q5_1", linear_book(6, 0), 32, has_minimums=True),
    Kind("wide_8", linear_book(8, 128), 16, torch.float32, has_minimums=True),
    Kind("mxfp4", E2M1, 32, torch.float32),
    Kind("fp8", E4M3, 128, torch.float32),
    Kind("nf4", UNEVEN, 64, torch.float32),
]


def random_weight(kind: Kind, outputs: int, num_groups: int, seed: int = 0) -> QuantisedWeight:
    """``num_groups`` groups of inputs; values of about the inputs' number to the power of -0.5."""
    generator = torch.Generator().manual_seed(seed)
    inputs, bits = num_groups * kind.group, bits_of(kind.book)
    codes = torch.randint(0, 256, (outputs, inputs * bits // 8), generator=generator, dtype=torch.uint8)
    size = inputs**-0.5 / kind.book.std()
    wide = (torch.rand(outputs, num_groups, generator=generator) + 0.5) * size
    order = torch.randperm(inputs, generator=generator).int() if kind.has_order else None
    if kind.scale_dtype is torch.int8:
        return _with_block_scales(kind, codes, wide, generator)
    is_power = kind.scale_dtype is torch.uint8
    scales = (wide.log2().round() + 127).to(torch.uint8) if is_power else wide.to(kind.scale_dtype)
    minimums = (scales.float() * -kind.book.mean()).to(kind.scale_dtype) if kind.has_minimums else None
    return QuantisedWeight(codes, scales, minimums, kind.book.clone(), order)


def _with_block_scales(
    kind: Kind, codes: torch.Tensor, wide: torch.Tensor, generator: torch.Generator
) -> QuantisedWeight:
    """Integers of both signs, of equally many groups in each block: two where there are as many."""
    outputs, groups = wide.shape
    blocks = groups // 2 if groups % 2 == 0 else groups
    own = (torch.rand(outputs, blocks, 2, generator=generator) + 0.5) * wide.mean() / 40
    own[:, :, 1] *= -kind.book.mean()
    signs = torch.randint(0, 2, wide.shape, generator=generator) * 2 - 1
    scales = (wide / wide.mean() * 40).to(torch.int8) * signs.to(torch.int8)
    minimums = scales.abs() if kind.has_minimums else None
    kept = own[:, :, : 2 if kind.has_minimums else 1].half().contiguous()
    return QuantisedWeight(codes, scales, minimums, kind.book.clone(), block_scales=kept)
