"""Numbers of 4 bits (E2M1) in groups with scales of 8 bits: MXFP4 and NVFP4, as every tool packs them.

MXFP4: 32 values and a power of two, E8M0 (OCP Microscaling Formats, version 1.0, 2023). NVFP4: 16 values and an E4M3
scale, beside which the tensor has one of its own in float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kvplan_engine.checkpoints.quantised.reader import StoredTensors
from kvplan_engine.description.weight_format import Codes, WeightFormat, cut_group
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight, linear_book

# What the codes of published formats stand for.
#
# E2M1: OCP Microscaling Formats, version 1.0, 2023. E4M3: OCP 8-bit Floating Point, 2023; its two NaNs are zeros here,
# and refused where they occur. NF4: Dettmers et al., QLoRA, 2023, appendix E.


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


# FP8 checkpoints (E4M3): one scale for a tensor, for each output, or for each block of 128 x 128.


_NAN = 0x7F


class Fp8Reader:
    """weight [outputs, inputs] float8_e4m3fn beside weight_scale, or weight_scale_inv for blocks; both multiply.

    Inputs are meant to be rounded too, by scales of their own; those that "static" checkpoints store are not read.
    """

    def __init__(self, tensors: StoredTensors, section: dict[str, Any]) -> None:
        self._tensors = tensors
        block = section.get("weight_block_size")
        self._block = None if block is None else (int(block[0]), int(block[1]))
        if self._block is not None and cut_group(self._block[1]) != self._block[1]:
            raise EngineError(f"FP8 weights in blocks of {list(self._block)} are not loaded.", hint="128 x 128 are")

    def format_of(self, name: str, num_inputs: int) -> WeightFormat | None:
        """See QuantisedReader.format_of."""
        if self._leaf(name) is None:
            return None
        group = _held_group(num_inputs, self._block)
        return WeightFormat(8, group, 4) if group else None

    def read(self, name: str) -> QuantisedWeight:
        """See QuantisedReader.read."""
        leaf = self._leaf(name)
        assert leaf is not None, "the caller asks for the format first"
        weight, scales = self._tensors.read(name), self._tensors.part(name, leaf)
        return float8_weight(name, weight, scales, self._block, rounds_inputs=True)

    def _leaf(self, name: str) -> str | None:
        return next((leaf for leaf in ("weight_scale_inv", "weight_scale") if self._tensors.has_part(name, leaf)), None)


def float8_weight(
    name: str,
    weight: torch.Tensor,
    scales: torch.Tensor,
    block: tuple[int, int] | None = None,
    *,
    rounds_inputs: bool = False,
) -> QuantisedWeight:
    """weight float8_e4m3fn [outputs, inputs]; scales one, [outputs] or [outputs, 1], or one for each ``block``.

    rounds_inputs: as in QuantisedWeight.
    """
    if weight.dtype is not torch.float8_e4m3fn:
        raise EngineError(f"'{name}' is stored as {weight.dtype}, wanted float8_e4m3fn.")
    codes = weight.contiguous().view(torch.uint8)
    if ((codes & _NAN) == _NAN).any():
        raise EngineError(f"'{name}' has values that are no numbers.", hint="download it again")
    outputs, inputs = weight.shape
    num_groups = inputs // _held_group(inputs, block)
    if block is not None:
        wide = _of_blocks(name, scales.float(), outputs, inputs, block, num_groups)
    elif scales.numel() in (1, outputs):
        wide = scales.float().reshape(-1, 1).expand(outputs, num_groups)
    else:
        raise EngineError(f"'{name}' has {scales.numel()} scales for {outputs} outputs.")
    return QuantisedWeight(codes, wide.contiguous(), None, E4M3, rounds_inputs=rounds_inputs)


def _held_group(num_inputs: int, block: tuple[int, int] | None) -> int:
    return cut_group(num_inputs if block is None else math.gcd(num_inputs, block[1]))


def _of_blocks(
    name: str, scales: torch.Tensor, outputs: int, inputs: int, block: tuple[int, int], num_groups: int
) -> torch.Tensor:
    wanted = [math.ceil(outputs / block[0]), math.ceil(inputs / block[1])]
    if list(scales.shape) != wanted:
        raise EngineError(f"'{name}' has scales of {list(scales.shape)}, blocks of {list(block)} need {wanted}.")
    rows = torch.arange(outputs) // block[0]
    columns = torch.arange(num_groups) * (inputs // num_groups) // block[1]
    return scales[rows][:, columns]


# gpt-oss's checkpoints: the experts of a layer in one tensor of MXFP4, everything else dense.


class Mxfp4Reader:
    """x_blocks uint8 [experts, outputs, inputs / 32, 16] and x_scales uint8 [experts, outputs, inputs / 32] of x."""

    def __init__(self, tensors: StoredTensors, section: dict[str, Any]) -> None:
        self._tensors = tensors

    def format_of(self, name: str, num_inputs: int) -> WeightFormat | None:
        """See QuantisedReader.format_of."""
        is_stored = self._tensors.has_part(name, "_blocks") and num_inputs % MXFP4_GROUP == 0
        return WeightFormat(4, MXFP4_GROUP, 1) if is_stored else None

    def read(self, name: str) -> QuantisedWeight:
        """See QuantisedReader.read. The rows of all experts, one below the other."""
        blocks, scales = (self._tensors.part(name, leaf) for leaf in ("_blocks", "_scales"))
        if blocks.ndim != 4 or blocks.shape[3] * 2 != MXFP4_GROUP or scales.shape != blocks.shape[:3]:
            raise EngineError(
                f"'{name}' has blocks of {list(blocks.shape)} and scales of {list(scales.shape)}, wanted 16 bytes for "
                "each scale."
            )
        return mxfp4_weight(name, blocks.flatten(2).flatten(0, 1), scales.flatten(0, 1))


# ModelOpt's checkpoints: NVFP4 and FP8. How a tensor is stored shows in what lies beside it.


_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "MIXED_PRECISION")


class ModelOptReader:
    """NVFP4: weight uint8 [outputs, inputs / 2], weight_scale E4M3 [outputs, inputs / 16], weight_scale_2, one float32.

    FP8: weight E4M3 [outputs, inputs], weight_scale one float32, or one for each output. All of these multiply.
    """

    def __init__(self, tensors: StoredTensors, section: dict[str, Any]) -> None:
        self._tensors = tensors
        algorithm = str(section.get("quant_algo") or "MIXED_PRECISION").upper()
        if algorithm not in _ALGORITHMS:
            raise EngineError(
                f"ModelOpt's weights in '{algorithm}' are not loaded.", hint="those are: " + ", ".join(_ALGORITHMS)
            )

    def format_of(self, name: str, num_inputs: int) -> WeightFormat | None:
        """See QuantisedReader.format_of."""
        if self._tensors.has_part(name, "weight_scale_2"):
            return WeightFormat(4, NVFP4_GROUP, 4) if num_inputs % NVFP4_GROUP == 0 else None
        group = cut_group(num_inputs)
        return WeightFormat(8, group, 4) if group and self._tensors.has_part(name, "weight_scale") else None

    def read(self, name: str) -> QuantisedWeight:
        """See QuantisedReader.read."""
        weight, scales = self._tensors.read(name), self._tensors.part(name, "weight_scale")
        if not self._tensors.has_part(name, "weight_scale_2"):
            return float8_weight(name, weight, scales, rounds_inputs=True)
        return nvfp4_weight(name, weight, scales, self._tensors.part(name, "weight_scale_2"))
