"""bitsandbytes' checkpoints, saved after they were quantised: 4 bits (NF4 and FP4), and 8 bits (LLM.int8).

Of 4 bits, a scale belongs to ``blocksize`` values of the flattened weight. Scales may be quantised themselves: a byte
stands for an entry of a map of 256, times a scale of its own for each ``nested_blocksize`` of them, plus an offset.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from kvplan_engine.checkpoints.quantised.reader import StoredTensors
from kvplan_engine.checkpoints.quantised.words import from_codes
from kvplan_engine.description.weight_format import WeightFormat, cut_group
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

_TYPES = ("nf4", "fp4")
_LARGEST_CODE = 127


class BitsAndBytesReader:
    """4 bits: weight [outputs x inputs / 2, 1] of bytes, the upper half first; weight.absmax, weight.quant_map and
    weight.quant_state.bitsandbytes__nf4, the bytes of a JSON object. 8 bits: weight int8 [outputs, inputs]; SCB
    [outputs], the magnitude that 127 stands for.
    """

    def __init__(self, tensors: StoredTensors, section: dict[str, Any]) -> None:
        self._tensors = tensors

    def format_of(self, name: str, num_inputs: int) -> WeightFormat | None:
        """See QuantisedReader.format_of."""
        if self._tensors.has_part(name, "SCB"):
            group, bits = cut_group(num_inputs), 8
        elif self._leaf(name) is not None:
            group, bits = cut_group(math.gcd(num_inputs, self._state(name)[0])), 4
        else:
            return None
        return WeightFormat(bits, group, 4) if group else None

    def read(self, name: str) -> QuantisedWeight:
        """See QuantisedReader.read."""
        if self._tensors.has_part(name, "SCB"):
            return self._of_8_bits(name)
        block, (outputs, inputs), state = self._state(name)
        group = cut_group(math.gcd(inputs, block))
        packed = self._tensors.read(name).contiguous().view(torch.uint8).flatten()
        scales = self._scales(name, state)
        if not group or packed.numel() * 2 != outputs * inputs or scales.numel() * block < outputs * inputs:
            raise EngineError(
                f"'{name}' of {outputs} x {inputs} has {packed.numel()} bytes and {scales.numel()} scales of {block} "
                "values, which do not fill it."
            )
        codes = (packed >> 4 | packed << 4).view(outputs, inputs // 2)
        of_group = torch.arange(outputs * inputs // group) * group // block
        book = self._tensors.part(name, "weight.quant_map").float()
        if book.numel() != 16:
            raise EngineError(f"'{name}' has {book.numel()} values for codes of 4 bits.")
        return QuantisedWeight(codes, scales[of_group].view(outputs, -1), None, book)

    def _of_8_bits(self, name: str) -> QuantisedWeight:
        weight, largest = self._tensors.read(name), self._tensors.part(name, "SCB").float()
        if weight.dtype is not torch.int8 or largest.numel() != weight.shape[0]:
            raise EngineError(f"'{name}' of {weight.dtype} has {largest.numel()} scales for {weight.shape[0]} outputs.")
        codes = (weight.to(torch.int16) + 128).to(torch.uint8)
        group = cut_group(weight.shape[1])
        return from_codes(codes, largest.reshape(-1, 1) / _LARGEST_CODE, None, 8, group)

    def _leaf(self, name: str) -> str | None:
        leaves = (f"weight.quant_state.bitsandbytes__{each}" for each in _TYPES)
        return next((leaf for leaf in leaves if self._tensors.has_part(name, leaf)), None)

    def _state(self, name: str) -> tuple[int, tuple[int, int], dict[str, Any]]:
        """The values of a block, the weight's shape, and all that is said of it."""
        leaf = self._leaf(name)
        assert leaf is not None, "the caller asks for the format first"
        try:
            state = json.loads(bytes(self._tensors.part(name, leaf).tolist()))
            outputs, inputs = (int(size) for size in state["shape"])
            return int(state["blocksize"]), (outputs, inputs), state
        except (ValueError, KeyError, TypeError):
            raise EngineError(f"'{name}' has a damaged '{leaf}'.", hint="download it again") from None

    def _scales(self, name: str, state: dict[str, Any]) -> torch.Tensor:
        stored = self._tensors.part(name, "weight.absmax").flatten()
        if not self._tensors.has_part(name, "weight.nested_absmax"):
            return stored.float()
        outer, values = (self._tensors.part(name, f"weight.nested_{leaf}").float() for leaf in ("absmax", "quant_map"))
        block = int(state.get("nested_blocksize", 256))
        if stored.dtype is not torch.uint8 or values.numel() != 256 or outer.numel() * block < stored.numel():
            raise EngineError(
                f"'{name}' has {outer.numel()} scales for {stored.numel()} quantised ones of {block} each."
            )
        wide = values[stored.long()] * outer[torch.arange(stored.numel()) // block]
        return wide + float(state.get("nested_offset", 0.0))
