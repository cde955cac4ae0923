"""ModelOpt's checkpoints: NVFP4 and FP8. How a tensor is stored shows in what lies beside it."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.quantised.floats import NVFP4_GROUP, nvfp4_weight
from kvplan_engine.checkpoints.quantised.fp8 import float8_weight
from kvplan_engine.checkpoints.quantised.stored_tensors import StoredTensors
from kvplan_engine.description.weight_format import WeightFormat, cut_group
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

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
