"""GPTQ's checkpoints (AutoGPTQ, GPTQModel): codes packed along the inputs, zero points along the outputs.

A plain "gptq" checkpoint stores each zero point less one, "gptq_v2" as it is. With act order a weight's inputs belong
to groups in an order of their own (g_idx): they are moved together here, and x's inputs follow them in the product.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kvplan_engine.checkpoints.quantised.int_words import check_bits, from_codes, unpacked_words
from kvplan_engine.checkpoints.quantised.stored_tensors import StoredTensors
from kvplan_engine.description.weight_format import WeightFormat, cut_group
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight


class GptqReader:
    """qweight [inputs / codes in a word, outputs], qzeros [groups, outputs / the same], scales [groups, outputs]."""

    def __init__(self, tensors: StoredTensors, section: dict[str, Any]) -> None:
        self._tensors = tensors
        self._bits = int(section.get("bits", 4))
        check_bits(self._bits, "GPTQ")
        self._group_size = int(section.get("group_size", 128))
        self._is_symmetric = bool(section.get("sym", True))
        self._has_order = bool(section.get("desc_act", False))
        self._zero_offset = 0 if section.get("checkpoint_format") == "gptq_v2" else 1

    def format_of(self, name: str, num_inputs: int) -> WeightFormat | None:
        """See QuantisedReader.format_of."""
        if not self._tensors.has_part(name, "qweight"):
            return None
        group = self._held_group(num_inputs)
        return WeightFormat(self._bits, group, 4, not self._is_symmetric, self._has_order)

    def read(self, name: str) -> QuantisedWeight:
        """See QuantisedReader.read."""
        codes = unpacked_words(self._tensors.part(name, "qweight").t(), self._bits)
        scales = self._tensors.part(name, "scales").t()
        stored = self._tensors.part(name, "qzeros")
        zeros = unpacked_words(stored, self._bits).t()[: scales.shape[0]].int() + self._zero_offset
        _check_groups(name, codes.shape[1], self._group_size, scales.shape[1])
        if zeros.shape != scales.shape:
            raise EngineError(f"'{name}' has {list(zeros.shape)} zero points for {list(scales.shape)} scales.")
        if self._is_symmetric and not (zeros == 1 << self._bits - 1).all():
            raise EngineError(f"'{name}' has zero points that its config, which says sym, rules out.")
        order = self._order(name, codes.shape[1]) if self._has_order else None
        if order is not None:
            codes = codes[:, order.long()]
        group = self._held_group(codes.shape[1])
        return from_codes(codes, scales, None if self._is_symmetric else zeros, self._bits, group, order)

    def _held_group(self, num_inputs: int) -> int:
        return cut_group(self._group_size if self._group_size > 0 else num_inputs)

    def _order(self, name: str, num_inputs: int) -> torch.Tensor:
        """The inputs, sorted by their groups. EngineError where these are not equally long."""
        groups = self._tensors.part(name, "g_idx").long()
        size = self._group_size if self._group_size > 0 else num_inputs
        if groups.shape[0] != num_inputs or not (groups.bincount() == size).all():
            raise EngineError(f"'{name}' has groups of inputs that are not all {size} long.")
        return groups.argsort(stable=True).int()


def _check_groups(name: str, num_inputs: int, group_size: int, num_groups: int) -> None:
    expected = 1 if group_size <= 0 else math.ceil(num_inputs / group_size)
    if num_groups != expected or (group_size > 0 and num_inputs % group_size):
        raise EngineError(
            f"'{name}' has {num_groups} groups of scales for {num_inputs} inputs, its config says groups of "
            f"{group_size}.",
            hint="is its config.json the checkpoint's own?",
        )
