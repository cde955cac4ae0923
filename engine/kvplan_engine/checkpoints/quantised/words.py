"""Codes packed into int32 words, and what their scales and zero points become."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from kvplan_engine.checkpoints.quantised.reader import StoredTensors
from kvplan_engine.description.weight_format import WeightFormat, cut_group
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight, linear_book, packed_codes


def unpacked_words(words: torch.Tensor, bits: int, order: Sequence[int] | None = None) -> torch.Tensor:
    """int32 [rows, words] to uint8 [rows, words x 32 / bits], the lowest bits first.

    order: the column, of those of a word, that each of its codes belongs to; None: one after the other.
    """
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    codes = (words.unsqueeze(-1) >> shifts & (1 << bits) - 1).to(torch.uint8)
    if order is not None:
        codes = codes[..., torch.tensor(order).argsort()]
    return codes.flatten(1)


def from_codes(
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bits: int,
    group_size: int,
    order: torch.Tensor | None = None,
) -> QuantisedWeight:
    """codes uint8 [outputs, inputs]; scales, and zeros as codes, [outputs, groups]; zeros None: half of all codes.

    Values are (code - zero) x scale: in float32 the difference of two products, each of which is exact. group_size: a
    divisor of the published groups' length, in which they are cut.
    """
    pieces = codes.shape[1] // group_size // scales.shape[1]
    if zeros is None:
        minimums, zero = None, 1 << bits - 1
    else:
        minimums, zero = (-zeros.float() * scales.float()).repeat_interleave(pieces, dim=1), 0
    wide = scales.float().repeat_interleave(pieces, dim=1).contiguous()
    return QuantisedWeight(packed_codes(codes, bits), wide, minimums, linear_book(bits, zero), order)


def check_bits(bits: int, method: str) -> None:
    """EngineError for codes that are not of 4 or 8 bits."""
    if bits not in (4, 8):
        raise EngineError(f"{method} weights of {bits} bits are not loaded.", hint="those of 4 and 8 bits are")


# AWQ's checkpoints (AutoAWQ, version GEMM): 4 bits, packed along the outputs in an order of their own.


_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output, of a word's eight, that each four bits belong to, from the lowest bits on."""


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


# GPTQ's checkpoints (AutoGPTQ, GPTQModel): codes packed along the inputs, zero points along the outputs.
#
# A plain "gptq" checkpoint stores each zero point less one, "gptq_v2" as it is. With act order a weight's inputs belong
# to groups in an order of their own (g_idx): they are moved together here, and x's inputs follow them in the product.


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
