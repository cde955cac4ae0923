"""compressed-tensors' checkpoints (llm-compressor): int4 and int8 in words, int8 and FP8 in bytes, FP4 two in a byte.

How a tensor is stored shows in what lies beside it, so the config's groups of targets need not be matched.
"""

from __future__ import annotations

from typing import Any

import torch

from kvplan_engine.checkpoints.quantised.floats import float8_weight, mxfp4_weight, nvfp4_weight
from kvplan_engine.checkpoints.quantised.reader import StoredTensors
from kvplan_engine.checkpoints.quantised.words import check_bits, from_codes, unpacked_words
from kvplan_engine.description.weight_format import WeightFormat, cut_group
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

_OF_4_BITS = ("nvfp4-pack-quantized", "mxfp4-pack-quantized")
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", *_OF_4_BITS, "mixed-precision")


class CompressedReader:
    """weight_packed [outputs, inputs / codes in a word] or weight [outputs, inputs]; weight_scale [outputs, groups].

    Numbers of 4 bits lie in bytes, and NVFP4's scales are divided by weight_global_scale.
    """

    def __init__(self, tensors: StoredTensors, section: dict[str, Any]) -> None:
        self._tensors = tensors
        self._rounds_inputs = rounds_inputs(section)
        stored = str(section.get("format", ""))
        if stored not in _FORMATS:
            raise EngineError(
                f"compressed-tensors in the format '{stored}' are not loaded.", hint="those are: " + ", ".join(_FORMATS)
            )

    def format_of(self, name: str, num_inputs: int) -> WeightFormat | None:
        """See QuantisedReader.format_of."""
        if not self._tensors.has_part(name, "weight_scale"):
            return None
        scales = self._tensors.part(name, "weight_scale")
        group = cut_group(num_inputs // max(1, scales.shape[-1] if scales.ndim == 2 else 1))
        if not self._tensors.has_part(name, "weight_packed"):
            return WeightFormat(8, group, 4)
        if self._is_float4(name):
            return WeightFormat(4, group, 4 if self._tensors.has_part(name, "weight_global_scale") else 1)
        has_zeros = self._tensors.has_part(name, "weight_zero_point")
        return WeightFormat(self._bits(name, num_inputs), group, 4, has_zeros)

    def read(self, name: str) -> QuantisedWeight:
        """See QuantisedReader.read."""
        scales = self._tensors.part(name, "weight_scale")
        if not self._tensors.has_part(name, "weight_packed"):
            return self._of_bytes(name, self._tensors.read(name), scales)
        if self._is_float4(name):
            return self._of_float4(name, scales)
        if self._tensors.has_part(name, "weight_g_idx"):
            raise EngineError(f"'{name}' has groups in an order of their own, which is read from GPTQ alone.")
        num_inputs = int(self._tensors.part(name, "weight_shape")[1])
        bits = self._bits(name, num_inputs)
        codes = unpacked_words(self._tensors.part(name, "weight_packed"), bits)[:, :num_inputs]
        zeros = None
        if self._tensors.has_part(name, "weight_zero_point"):
            packed = self._tensors.part(name, "weight_zero_point")
            zeros = unpacked_words(packed.t(), bits).t()[: scales.shape[0]]
        _check_scales(name, codes, scales)
        return from_codes(codes, scales, zeros, bits, cut_group(num_inputs // scales.shape[1]))

    def _is_float4(self, name: str) -> bool:
        return self._tensors.part(name, "weight_packed").dtype is torch.uint8

    def _of_float4(self, name: str, scales: torch.Tensor) -> QuantisedWeight:
        packed = self._tensors.part(name, "weight_packed")
        if not self._tensors.has_part(name, "weight_global_scale"):
            return mxfp4_weight(name, packed, scales)
        divisor = self._tensors.part(name, "weight_global_scale")
        return nvfp4_weight(name, packed, scales, divisor, divides=True)

    def _of_bytes(self, name: str, weight: torch.Tensor, scales: torch.Tensor) -> QuantisedWeight:
        if weight.dtype is not torch.int8:
            return float8_weight(name, weight, scales, rounds_inputs=self._rounds_inputs)
        if scales.ndim != 2:
            scales = scales.reshape(1, 1).expand(weight.shape[0], 1)
        _check_scales(name, weight, scales)
        codes = (weight.to(torch.int16) + 128).to(torch.uint8)
        return from_codes(codes, scales, None, 8, cut_group(weight.shape[1] // scales.shape[1]))

    def _bits(self, name: str, num_inputs: int) -> int:
        bits = 32 * self._tensors.part(name, "weight_packed").shape[1] // num_inputs
        check_bits(bits, "compressed-tensors")
        return bits


def rounds_inputs(section: dict[str, Any]) -> bool:
    """Whether every group of a ``quantization_config`` has inputs of products rounded to floats of 8 bits."""
    groups = list((section.get("config_groups") or {}).values())
    inputs = [group.get("input_activations") or {} for group in groups if isinstance(group, dict)]
    return bool(inputs) and all(each.get("type") == "float" and each.get("num_bits") == 8 for each in inputs)


def _check_scales(name: str, codes: torch.Tensor, scales: torch.Tensor) -> None:
    if scales.shape[0] != codes.shape[0] or codes.shape[1] % scales.shape[1]:
        raise EngineError(
            f"'{name}' of {list(codes.shape)} has scales of {list(scales.shape)}, which do not divide it."
        )
