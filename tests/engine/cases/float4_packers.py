"""Packers of the formats with floats of 4 bits and of bitsandbytes', written from the formats' own descriptions.

Each takes a weight [outputs, inputs] and gives what a checkpoint has instead of it, by leaf, and the weight it means.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

Packed = tuple[dict[str, torch.Tensor], torch.Tensor]

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Of E2M1, by its lower three bits: two of exponent, biased by 1, and one of mantissa. The fourth is the sign."""

_BELOW_ZERO = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635)
_AROUND_ZERO = (-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725)
_ABOVE_ZERO = (0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941)
NF4 = (*_BELOW_ZERO, *_AROUND_ZERO, *_ABOVE_ZERO, 0.7229568362236023, 1.0)


def _float4(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes of the nearest numbers, and these."""
    nearest = np.abs(np.abs(values)[..., None] - np.array(MAGNITUDES)).argmin(axis=-1)
    is_negative = values < 0
    return nearest + 8 * is_negative, np.array(MAGNITUDES)[nearest] * np.where(is_negative, -1, 1)


def _pairs(codes: np.ndarray, *, first_is_low: bool = True) -> torch.Tensor:
    """uint8 [rows, inputs / 2] of codes [rows, inputs]."""
    even, odd = codes[:, 0::2].astype(np.uint8), codes[:, 1::2].astype(np.uint8)
    return torch.from_numpy(even | odd << 4 if first_is_low else even << 4 | odd)


def _grouped(weight: torch.Tensor, group: int) -> np.ndarray:
    return weight.double().numpy().reshape(weight.shape[0], -1, group)


def mxfp4_parts(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pairs of codes [outputs, inputs / 2], exponents uint8 [outputs, inputs / 32], and the weight that they mean."""
    groups = _grouped(weight, 32)
    exponents = np.floor(np.log2(np.abs(groups).max(axis=2) + 1e-30)) - 2
    codes, values = _float4(groups / 2.0 ** exponents[..., None])
    meant = torch.from_numpy((values * 2.0 ** exponents[..., None]).reshape(weight.shape)).float()
    pairs = _pairs(codes.reshape(weight.shape))
    return pairs, torch.from_numpy((exponents + 127).astype(np.uint8)), meant


def pack_mxfp4(weight: torch.Tensor, section: dict[str, Any]) -> Packed:
    """As compressed-tensors has it."""
    pairs, exponents, meant = mxfp4_parts(weight)
    return {"weight_packed": pairs, "weight_scale": exponents}, meant


def _nvfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float, torch.Tensor]:
    """Pairs, scales E4M3, the number that multiplies them, and the weight that they mean."""
    groups = _grouped(weight, 16)
    largest = np.abs(groups).max(axis=2)
    factor = float(np.float32(largest.max() / 6 / 448))
    scales = torch.from_numpy(largest / 6 / factor).float().to(torch.float8_e4m3fn)
    steps = scales.double().numpy()[..., None] * factor
    codes, values = _float4(groups / steps)
    meant = torch.from_numpy((values * steps).reshape(weight.shape)).float()
    return _pairs(codes.reshape(weight.shape)), scales, factor, meant


def pack_nvfp4(weight: torch.Tensor, section: dict[str, Any]) -> Packed:
    """compressed-tensors divides by a number of the tensor, ModelOpt multiplies with one."""
    pairs, scales, factor, meant = _nvfp4(weight)
    if section["quant_method"] == "modelopt":
        return {"weight": pairs, "weight_scale": scales, "weight_scale_2": torch.tensor(factor)}, meant
    return {
        "weight_packed": pairs,
        "weight_scale": scales,
        "weight_global_scale": torch.tensor([1 / factor]),
        "input_global_scale": torch.tensor([1.0]),
    }, meant


def pack_nf4(weight: torch.Tensor, section: dict[str, Any]) -> Packed:
    """Blocks of 64 of the flattened weight; their scales in bytes too, around their mean, in blocks of 256."""
    outputs, inputs = weight.shape
    blocks = weight.double().numpy().reshape(-1, 64)
    largest = np.abs(blocks).max(axis=1).astype(np.float32)
    offset = float(np.float32(largest.mean()))
    values = np.sort(np.concatenate([np.linspace(-1, 1, 255), [0.0]])).astype(np.float32)
    count = -(-largest.size // 256)
    outer = np.array([np.abs(largest[256 * i : 256 * i + 256] - offset).max() for i in range(count)], dtype=np.float32)
    outer_of = outer[np.arange(largest.size) // 256]
    nested = np.abs((largest - offset)[:, None] / outer_of[:, None] - values).argmin(axis=1)
    scales = values[nested].astype(np.float64) * outer_of + offset
    codes = np.abs(blocks[..., None] / scales[:, None, None] - np.array(NF4)).argmin(axis=2)
    meant = torch.from_numpy((np.array(NF4)[codes] * scales[:, None]).reshape(outputs, inputs)).float()
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [outputs, inputs]}
    state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
    return {
        "weight": _pairs(codes.reshape(1, -1), first_is_low=False).reshape(-1, 1),
        "weight.absmax": torch.from_numpy(nested.astype(np.uint8)),
        "weight.quant_map": torch.tensor(NF4),
        "weight.nested_absmax": torch.from_numpy(outer),
        "weight.nested_quant_map": torch.from_numpy(values),
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }, meant


def pack_llm_int8(weight: torch.Tensor, section: dict[str, Any]) -> Packed:
    """A scale for each output."""
    largest = weight.abs().amax(dim=1)
    codes = (weight / largest.unsqueeze(1) * 127).round()
    meant = (codes.double() * largest.double().unsqueeze(1) / 127).float()
    return {"weight": codes.to(torch.int8), "SCB": largest}, meant
