"""What the codes of published formats stand for.

E2M1: OCP Microscaling Formats, version 1.0, 2023. E4M3: OCP 8-bit Floating Point, 2023; its two NaNs are zeros here,
and refused where they occur. NF4: Dettmers et al., QLoRA, 2023, appendix E.
"""

from __future__ import annotations

import torch

from kvplan_engine.description.quantization import Codes
from kvplan_engine.kernels.quantised_weight import linear_book

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0.0)
_NF4_BELOW = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453)
_NF4_NEAR = (-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534)
_NF4_ABOVE = (0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434)
_NF4_MOST = (0.5626170039176941, 0.7229568362236023, 1.0)
NF4 = torch.tensor([*_NF4_BELOW, *_NF4_NEAR, *_NF4_ABOVE, *_NF4_MOST])

BOOKS: dict[Codes, torch.Tensor] = {
    "int4": linear_book(4, 8),
    "int8": linear_book(8, 128),
    "e2m1": E2M1,
    "nf4": NF4,
    "e4m3": E4M3,
}
