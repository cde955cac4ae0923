"""One weight for each head, packed once for our own product (csrc/cpu/products/head_products.cpp)."""

from __future__ import annotations

from ctypes import byref

import torch

from kvplan_engine.kernels.arguments import check_rows
from kvplan_engine.kernels.cpu.head_products_args import HeadProductsArgs
from kvplan_engine.kernels.cpu.huge_pages import empty_for_weights
from kvplan_engine.kernels.cpu.library import STORAGE_CODES, CpuKernels


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
