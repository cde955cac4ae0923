"""Weights packed once for our own products (csrc/cpu/products): one matrix, or one for each head."""

from __future__ import annotations

from ctypes import byref

import torch

from kvplan_engine.kernels.arguments import check_rows, check_vector
from kvplan_engine.kernels.cpu.huge_pages import empty_for_weights
from kvplan_engine.kernels.cpu.library import STATUS_OK, STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.structures import HeadProductsArgs, PackedLinearArgs

ACTIVATION_CODES = {None: 0, "gelu_new": 1, "gelu": 2, "silu_and_mul": 3, "gelu_tanh_and_mul": 4, "relu2": 6}
"""What may follow the product, with its number on the C side."""


def is_gated(activation: str | None) -> bool:
    """Whether it multiplies one half of the outputs with the other."""
    return activation is not None and activation.endswith("_and_mul")


def packs_gated(kernels: CpuKernels, num_outputs: int) -> bool:
    """Whether a weight of gate rows above up rows can be packed for a gated activation: each half in whole panels."""
    half = num_outputs // 2
    return num_outputs % 2 == 0 and int(kernels.packed_outputs(half)) == half


def packs_activation(kernels: CpuKernels, activation: str | None, num_outputs: int) -> bool:
    """Whether ``activation`` can be part of the product with a weight of ``num_outputs`` rows."""
    if is_gated(activation) and not packs_gated(kernels, num_outputs):
        return False
    return activation in ACTIVATION_CODES


class PackedWeight:
    """A weight [num_outputs, num_inputs] in panels, float32 or bfloat16, with its bias and what follows the product.

    A ``Projection`` of ``layers``. The published weight may be freed: ``rows`` returns its rows.
    """

    __slots__ = ("_bias", "_kernels", "_num_inputs", "_num_outputs", "_packed", "activation", "dtype", "layer_args")

    def __init__(
        self, kernels: CpuKernels, weight: torch.Tensor, bias: torch.Tensor | None = None, activation: str | None = None
    ) -> None:
        self._num_outputs, self._num_inputs = weight.shape
        if weight.dtype not in STORAGE_CODES or not weight.is_contiguous():
            raise ValueError(f"a packed weight is contiguous float32 or bfloat16, got {weight.dtype}")
        if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype is not weight.dtype):
            raise ValueError(
                f"bias is {bias.dtype} {tuple(bias.shape)}, wanted {weight.dtype} {tuple(weight.shape[:1])}"
            )
        self._kernels, self._bias, self.activation = kernels, bias, activation
        self.dtype = weight.dtype
        gated = is_gated(activation)
        if gated and not packs_gated(kernels, self._num_outputs):
            raise ValueError(f"{self._num_outputs} outputs do not make whole panels of gate and up")
        code = STORAGE_CODES[weight.dtype]
        shape = kernels.packed_outputs(self._num_outputs), kernels.packed_inputs(self._num_inputs, code)
        self._packed = empty_for_weights(shape, weight.dtype)
        kernels.pack_weight(
            *(weight.data_ptr(), self._packed.data_ptr(), self._num_inputs, self._num_outputs),
            *(gated, code, torch.get_num_threads()),
        )
        self.layer_args = PackedLinearArgs(
            packed=self._packed.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            inputs=self._num_inputs,
            outputs=self._num_outputs,
            activation=ACTIVATION_CODES[activation],
            storage=code,
        )

    @property
    def num_result_columns(self) -> int:
        return self._num_outputs // 2 if is_gated(self.activation) else self._num_outputs

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """out [T, num_result_columns] = activation(x [T, num_inputs] @ weight.T + bias); both may be row-strided."""
        rows = x.shape[0]
        check_rows("x", x, (rows, self._num_inputs), self.dtype)
        check_rows("out", out, (rows, self.num_result_columns), self.dtype)
        args = self.layer_args
        args.x, args.out = x.data_ptr(), out.data_ptr()
        args.x_stride, args.out_stride, args.rows = x.stride(0), out.stride(0), rows
        self._kernels.multiply_packed(byref(args), torch.get_num_threads())

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """out [T, num_inputs] = weight[indices] for indices [T] int64. IndexError where there is no such row."""
        if is_gated(self.activation):
            raise ValueError("the rows of a gated weight cannot be read back")
        check_vector("indices", indices, indices.numel(), torch.int64)
        check_rows("out", out, (indices.shape[0], self._num_inputs), self.dtype)
        status = self._kernels.unpack_rows(
            *(self._packed.data_ptr(), indices.data_ptr(), out.data_ptr()),
            *(out.stride(0), indices.shape[0], self._num_inputs, self._num_outputs),
            *(STORAGE_CODES[self.dtype], torch.get_num_threads()),
        )
        if status != STATUS_OK:
            raise IndexError(f"a row of {indices.tolist()} lies outside the weight's {self._num_outputs}")


class PackedHeads:
    """Weights [heads, outputs, inputs] in panels, float32 or bfloat16. The published ones may be freed."""

    __slots__ = ("_args", "_dtype", "_kernels", "_packed", "_shape")
    keeps_own = True

    def __init__(self, kernels: CpuKernels, weights: torch.Tensor) -> None:
        if weights.dtype not in STORAGE_CODES or weights.dim() != 3:
            raise ValueError(
                f"packed heads are float32 or bfloat16 [heads, outputs, inputs], got {weights.dtype} "
                f"{tuple(weights.shape)}"
            )
        self._kernels, self._dtype, self._shape = kernels, weights.dtype, tuple(weights.shape)
        heads, outputs, inputs = self._shape
        code = STORAGE_CODES[weights.dtype]
        shape = heads, kernels.packed_outputs(outputs), kernels.packed_inputs(inputs, code)
        self._packed = empty_for_weights(shape, weights.dtype)
        for weight, packed in zip(weights, self._packed, strict=True):
            source = weight.contiguous()
            pointers = source.data_ptr(), packed.data_ptr()
            kernels.pack_weight(*pointers, inputs, outputs, False, code, torch.get_num_threads())
        self._args = HeadProductsArgs(
            packed=self._packed.data_ptr(), heads=heads, inputs=inputs, outputs=outputs, storage=code
        )

    def multiply(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """out [T, heads, outputs] = x [T, heads, inputs] @ weight.T of each head; both may be strided."""
        heads, outputs, inputs = self._shape
        check_rows("x", x, (x.shape[0], heads, inputs), self._dtype)
        check_rows("out", out, (x.shape[0], heads, outputs), self._dtype)
        args = self._args
        args.x, args.x_row_stride, args.x_head_stride = x.data_ptr(), *x.stride()[:2]
        args.out, args.out_row_stride, args.out_head_stride = out.data_ptr(), *out.stride()[:2]
        args.rows = x.shape[0]
        self._kernels.multiply_heads(byref(args), torch.get_num_threads())
