"""A quantised weight in panels for our own product (csrc/cpu/products/quantised/quantised_linear.cpp), and its use."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, pointer

import torch

from kvplan_engine.kernels.arguments import check_rows, check_vector
from kvplan_engine.kernels.cpu.huge_pages import empty_for_weights
from kvplan_engine.kernels.cpu.library import STATUS_OK, STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.packed import ACTIVATION_CODES, is_gated, packs_gated
from kvplan_engine.kernels.cpu.structures import PackedLinearArgs, WeightFormatArgs
from kvplan_engine.kernels.quantised_weight import LARGEST_GROUP, QuantisedWeight

SCALE_CODES = {torch.float32: 0, torch.float16: 1, torch.uint8: 2, torch.int8: 3}
"""enum kvplan_scale_storage; uint8 are powers of two, int8 have block scales."""


class PanelFormat:
    """How the kernels find their way in a weight's panels: ``args``, and what these point to."""

    __slots__ = ("_book", "_order", "args")

    def __init__(self, weight: QuantisedWeight) -> None:
        _check(weight)
        zero = weight.zero
        self._book = weight.book.float().contiguous() if zero is None else None
        self._order = weight.order
        self.args = WeightFormatArgs(
            code_book=None if self._book is None else self._book.data_ptr(),
            input_order=None if self._order is None else self._order.data_ptr(),
            bits=weight.bits,
            zero=zero or 0,
            group=weight.group_size,
            scale_storage=SCALE_CODES[weight.scales.dtype],
            has_minimum=weight.minimums is not None,
            block=0 if weight.block_scales is None else weight.num_inputs // weight.block_scales.shape[1],
            rounds_inputs=weight.multiplies_integers,
        )


def pack_in_panels(
    kernels: CpuKernels, panels: PanelFormat, weights: Sequence[QuantisedWeight], *, gated: bool
) -> torch.Tensor:
    """Weights of one format and one shape in panels: uint8 [number of weights, bytes of each]."""
    outputs, inputs = weights[0].num_outputs, weights[0].num_inputs
    num_bytes = kernels.quantised_bytes(byref(panels.args), inputs, outputs, gated)
    packed = empty_for_weights((len(weights), num_bytes), torch.uint8)
    for weight, target in zip(weights, packed, strict=True):
        kernels.pack_quantised(
            *(byref(panels.args), weight.codes.data_ptr(), weight.scales.data_ptr()),
            *(None if part is None else part.data_ptr() for part in (weight.minimums, weight.block_scales)),
            *(target.data_ptr(), inputs, outputs, gated, torch.get_num_threads()),
        )
    return packed


class PackedQuantised:
    """A ``weight`` in panels, with its bias (of x's dtype) and what follows the product. The weight may be freed."""

    __slots__ = ("_bias", "_format", "_kernels", "_packed", "_shape", "activation", "layer_args")

    def __init__(
        self,
        kernels: CpuKernels,
        weight: QuantisedWeight,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
    ) -> None:
        self._kernels, self._bias, self.activation = kernels, bias, activation
        self._shape = outputs, inputs = weight.num_outputs, weight.num_inputs
        gated = is_gated(activation)
        self._format = PanelFormat(weight)
        if gated and not packs_gated(kernels, outputs):
            raise ValueError(f"{outputs} outputs do not make whole panels of gate and up")
        self._packed = pack_in_panels(kernels, self._format, [weight], gated=gated)
        self.layer_args = PackedLinearArgs(
            packed=self._packed.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            inputs=inputs,
            outputs=outputs,
            activation=ACTIVATION_CODES[activation],
            format=pointer(self._format.args),
        )

    @property
    def num_result_columns(self) -> int:
        return self._shape[0] // 2 if is_gated(self.activation) else self._shape[0]

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """out [T, num_result_columns] = activation(x [T, num_inputs] @ weight.T + bias), float32 or bfloat16."""
        rows = x.shape[0]
        check_rows("x", x, (rows, self._shape[1]), out.dtype)
        check_rows("out", out, (rows, self.num_result_columns), x.dtype)
        if self._bias is not None and self._bias.dtype is not x.dtype:
            raise ValueError(f"bias is {self._bias.dtype}, x is {x.dtype}")
        args = self.layer_args
        args.x, args.out, args.storage = x.data_ptr(), out.data_ptr(), STORAGE_CODES[x.dtype]
        args.x_stride, args.out_stride, args.rows = x.stride(0), out.stride(0), rows
        self._kernels.multiply_packed(byref(args), torch.get_num_threads())

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """out [T, num_inputs] = weight[indices] for indices [T] int64. IndexError where there is no such row."""
        if is_gated(self.activation):
            raise ValueError("the rows of a gated weight cannot be read back")
        check_vector("indices", indices, indices.numel(), torch.int64)
        check_rows("out", out, (indices.shape[0], self._shape[1]), out.dtype)
        status = self._kernels.unpack_quantised_rows(
            *(byref(self._format.args), self._packed.data_ptr(), indices.data_ptr(), out.data_ptr(), out.stride(0)),
            *(indices.shape[0], self._shape[1], self._shape[0], STORAGE_CODES[out.dtype], torch.get_num_threads()),
        )
        if status != STATUS_OK:
            raise IndexError(f"a row of {indices.tolist()} lies outside the weight's {self._shape[0]}")


def stacked_args(parts: Sequence[PackedQuantised]) -> PackedLinearArgs:
    """One product of all ``parts``' rows, below each other, for parts without activation. Valid while they are."""
    following: PackedLinearArgs | None = None
    for part in reversed(parts):
        args = PackedLinearArgs.from_buffer_copy(part.layer_args)
        args.next = None if following is None else pointer(following)
        following = args
    assert following is not None, "a product has parts"
    return following


def _check(weight: QuantisedWeight) -> None:
    if weight.group_size > LARGEST_GROUP or weight.group_size % 8:
        raise ValueError(f"groups of {weight.group_size} inputs: wanted a multiple of 8, at most {LARGEST_GROUP}")
    if weight.bits == 6 and (weight.group_size % 16 or weight.zero is None):
        raise ValueError(f"6 bits: wanted a linear book and groups of a multiple of 16, got {weight.group_size}")
    if (weight.block_scales is None) == (weight.scales.dtype is torch.int8):
        raise ValueError(f"scales are {weight.scales.dtype}: block scales belong to int8")
    if weight.block_scales is not None:
        groups = weight.scales.shape[1] // weight.block_scales.shape[1]
        if groups & (groups - 1):
            raise ValueError(f"blocks of {groups} groups: wanted a power of two")
    parts = (weight.codes, weight.scales, weight.minimums, weight.order, weight.block_scales)
    if not all(part.is_contiguous() for part in parts if part is not None):
        raise ValueError("the parts of a quantised weight must be contiguous")
    if weight.bits == 8 and weight.zero is None and not _is_signed_table(weight.book):
        raise ValueError(
            "a book of 8 bits holds numbers of bfloat16, and the same ones with the other sign behind them"
        )
    if weight.minimums is not None and weight.minimums.dtype is not weight.scales.dtype:
        raise ValueError(f"minimums are {weight.minimums.dtype}, scales {weight.scales.dtype}")


def _is_signed_table(book: torch.Tensor) -> bool:
    return torch.equal(book.bfloat16().float(), book) and torch.equal(book[128:], -book[:128])
