"""gpt-oss's checkpoints: the experts of a layer in one tensor of MXFP4, everything else dense."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.quantised.floats import MXFP4_GROUP, mxfp4_weight
from kvplan_engine.checkpoints.quantised.stored_tensors import StoredTensors
from kvplan_engine.description.weight_format import WeightFormat
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight


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
