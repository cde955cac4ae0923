"""Numbers of 4 bits (E2M1) in groups with scales of 8 bits: MXFP4 and NVFP4, as every tool packs them.

MXFP4: 32 values and a power of two, E8M0 (OCP Microscaling Formats, version 1.0, 2023). NVFP4: 16 values and an E4M3
scale, beside which the tensor has one of its own in float32.
"""

from __future__ import annotations

import torch

from kvplan_engine.checkpoints.quantised.code_books import E2M1
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

MXFP4_GROUP = 32
NVFP4_GROUP = 16


def mxfp4_weight(name: str, codes: torch.Tensor, exponents: torch.Tensor) -> QuantisedWeight:
    """codes uint8 [outputs, inputs / 2], the lower half of a byte first; exponents uint8 [outputs, inputs / 32]."""
    _check(name, codes, exponents, MXFP4_GROUP)
    return QuantisedWeight(codes.contiguous(), exponents.view(torch.uint8).contiguous(), None, E2M1)


def nvfp4_weight(
    name: str, codes: torch.Tensor, scales: torch.Tensor, of_tensor: torch.Tensor, *, divides: bool = False
) -> QuantisedWeight:
    """codes as above; scales E4M3 [outputs, inputs / 16]; of_tensor: one number that multiplies, or divides, them."""
    _check(name, codes, scales, NVFP4_GROUP)
    if scales.dtype is not torch.float8_e4m3fn or of_tensor.numel() != 1:
        raise EngineError(
            f"'{name}' has scales of {scales.dtype} and {of_tensor.numel()} for the whole tensor, wanted float8_e4m3fn "
            "and one."
        )
    own = of_tensor.float().reshape(())
    wide = scales.float() / own if divides else scales.float() * own
    return QuantisedWeight(codes.contiguous(), wide, None, E2M1)


def _check(name: str, codes: torch.Tensor, scales: torch.Tensor, group: int) -> None:
    if codes.dtype is not torch.uint8 or codes.ndim != 2:
        raise EngineError(f"'{name}' holds {codes.dtype} of shape {list(codes.shape)}, wanted rows of bytes.")
    wanted = [codes.shape[0], 2 * codes.shape[1] // group]
    if list(scales.shape) != wanted or 2 * codes.shape[1] % group:
        raise EngineError(
            f"'{name}' has scales of {list(scales.shape)} for {2 * codes.shape[1]} inputs in groups of {group}, "
            f"wanted {wanted}."
        )
