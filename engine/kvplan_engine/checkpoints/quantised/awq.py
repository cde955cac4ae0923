"""AWQ's checkpoints (AutoAWQ, version GEMM): 4 bits, packed along the outputs in an order of their own."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.quantised.int_words import from_codes, unpacked_words
from kvplan_engine.checkpoints.quantised.stored_tensors import StoredTensors
from kvplan_engine.description.weight_format import WeightFormat, cut_group
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Of a word's eight outputs, the one that each four bits belong to, from the lowest bits on."""


class AwqReader:
    """qweight [inputs, outputs / 8], qzeros [groups, outputs / 8], scales [groups, outputs]."""

    def __init__(self, tensors: StoredTensors, section: dict[str, Any]) -> None:
        self._tensors = tensors
        self._group_size = int(section.get("group_size", section.get("q_group_size", 128)))
        bits, version = int(section.get("bits", section.get("w_bit", 4))), str(section.get("version", "gemm")).lower()
        if bits != 4 or version != "gemm":
            raise EngineError(f"AWQ weights of {bits} bits and version '{version}' are not loaded.", hint="4, gemm are")

    def format_of(self, name: str, num_inputs: int) -> WeightFormat | None:
        """See QuantisedReader.format_of."""
        if not self._tensors.has_part(name, "qweight"):
            return None
        return WeightFormat(4, cut_group(self._published_group(num_inputs)), 4, has_minimums=True)

    def read(self, name: str) -> QuantisedWeight:
        """See QuantisedReader.read."""
        codes = unpacked_words(self._tensors.part(name, "qweight"), 4, _COLUMNS).t()
        zeros = unpacked_words(self._tensors.part(name, "qzeros"), 4, _COLUMNS).t()
        scales = self._tensors.part(name, "scales").t()
        group = self._published_group(codes.shape[1])
        if zeros.shape != scales.shape or scales.shape[1] * group != codes.shape[1]:
            raise EngineError(
                f"'{name}' has {scales.shape[1]} groups of scales for {codes.shape[1]} inputs, its config says groups "
                f"of {group}.",
                hint="is its config.json the checkpoint's own?",
            )
        return from_codes(codes.contiguous(), scales, zeros, 4, cut_group(group))

    def _published_group(self, num_inputs: int) -> int:
        return self._group_size if self._group_size > 0 else num_inputs
