"""What LoRA adapters add to a product, as the CPU kernels take it (csrc/cpu/products/lora/lora_rows.h).

A packed product adds it before its activation; ``correct`` is for products that were computed elsewhere.
"""

from __future__ import annotations

from ctypes import byref, c_int64, pointer
from itertools import accumulate

import torch

from kvplan_engine.kernels.arguments import check_rows
from kvplan_engine.kernels.cpu.library import STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.structures import LoraRowsArgs, LoraSlotsArgs, PackedLinearArgs
from kvplan_engine.kernels.lora import LoraRows, LoraWeights


def slots_args(weights: LoraWeights) -> LoraSlotsArgs:
    """The slots as the kernels take them. Holds addresses: ``weights`` must outlive it."""
    ends = (c_int64 * len(weights.segments))(*accumulate(weights.segments))
    down, up = weights.down.data_ptr(), weights.up.data_ptr()
    return LoraSlotsArgs(down=down, up=up, rank=weights.rank, stacked=len(weights.segments), ends=ends)


def rows_args(rows: LoraRows) -> LoraRowsArgs:
    """The corrected rows as the kernels take them. Holds addresses: ``rows`` must outlive it."""
    return LoraRowsArgs(rows.rows.data_ptr(), rows.slots.data_ptr(), rows.slots.shape[0])


def correct(kernels: CpuKernels, x: torch.Tensor, out: torch.Tensor, weights: LoraWeights, rows: LoraRows) -> None:
    """See ``kernels.lora.Correct``; ValueError for tensors that do not fit."""
    inputs, outputs, dtype = weights.down.shape[2], weights.up.shape[2], weights.down.dtype
    number = x.shape[0]
    check_rows("x", x, (number, inputs), dtype)
    check_rows("out", out, (number, outputs), dtype)
    args = PackedLinearArgs(rows=number, inputs=inputs, outputs=outputs, storage=STORAGE_CODES[dtype])
    args.x, args.out, args.x_stride, args.out_stride = x.data_ptr(), out.data_ptr(), x.stride(0), out.stride(0)
    args.slots, args.corrected = pointer(slots_args(weights)), pointer(rows_args(rows))
    kernels.correct(byref(args), torch.get_num_threads())
