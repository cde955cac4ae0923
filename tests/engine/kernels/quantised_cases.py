"""Quantised weights of every kind that the kernels know, with random codes and scales."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.kernels.quantised_weight import QuantisedWeight, linear_book

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
    Kind("q4_k", linear_book(4, 0), 32, torch.float32, has_minimums=True),
    Kind("act_order", linear_book(4, 0), 128, torch.float32, has_minimums=True, has_order=True),
    Kind("q8_0", linear_book(8, 128), 32),
    Kind("q6_k", linear_book(8, 128), 16, torch.float32),
    Kind("q5_1", linear_book(8, 0), 32, has_minimums=True),
    Kind("mxfp4", E2M1, 32, torch.float32),
    Kind("fp8", E4M3, 128, torch.float32),
    Kind("nf4", UNEVEN, 64, torch.float32),
]


def random_weight(kind: Kind, outputs: int, num_groups: int, seed: int = 0) -> QuantisedWeight:
    """``num_groups`` groups of inputs; values of about the inputs' number to the power of -0.5."""
    generator = torch.Generator().manual_seed(seed)
    inputs, bits = num_groups * kind.group, 4 if kind.book.numel() == 16 else 8
    codes = torch.randint(0, 256, (outputs, inputs * bits // 8), generator=generator, dtype=torch.uint8)
    size = inputs**-0.5 / kind.book.std()
    wide = (torch.rand(outputs, num_groups, generator=generator) + 0.5) * size
    is_power = kind.scale_dtype is torch.uint8
    scales = (wide.log2().round() + 127).to(torch.uint8) if is_power else wide.to(kind.scale_dtype)
    minimums = (scales.float() * -kind.book.mean()).to(kind.scale_dtype) if kind.has_minimums else None
    order = torch.randperm(inputs, generator=generator).int() if kind.has_order else None
    return QuantisedWeight(codes, scales, minimums, kind.book.clone(), order)
