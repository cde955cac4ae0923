"""FP8 checkpoints (E4M3): one scale for a tensor, for each output, or for each block of 128 x 128."""

from __future__ import annotations

import math
from typing import Any

import torch

from kvplan_engine.checkpoints.quantised.code_books import E4M3
from kvplan_engine.checkpoints.quantised.stored_tensors import StoredTensors
from kvplan_engine.description.weight_format import WeightFormat, cut_group
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

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
