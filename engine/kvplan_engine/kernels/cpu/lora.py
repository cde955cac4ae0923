"""The compiled kernel that adds what LoRA adapters make of a product (csrc/cpu/products/lora.cpp)."""

from __future__ import annotations

from ctypes import byref, c_int64
from itertools import accumulate

import torch

from kvplan_engine.kernels.arguments import check_rows
from kvplan_engine.kernels.cpu.library import STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.lora_args import LoraArgs
from kvplan_engine.kernels.lora import LoraRows, LoraWeights


def correct(kernels: CpuKernels, x: torch.Tensor, out: torch.Tensor, weights: LoraWeights, rows: LoraRows) -> None:
    """See ``kernels.lora.Correct``; ValueError for tensors that do not fit."""
    inputs, outputs, dtype = weights.down.shape[2], weights.up.shape[2], weights.down.dtype
    check_rows("x", x, (x.shape[0], inputs), dtype)
    check_rows("out", out, (x.shape[0], outputs), dtype)
    ends = (c_int64 * len(weights.segments))(*accumulate(weights.segments))
    args = LoraArgs(
        *(x.data_ptr(), out.data_ptr(), x.stride(0), out.stride(0)),
        *(weights.down.data_ptr(), weights.up.data_ptr()),
        *(inputs, outputs, weights.rank, len(weights.segments), ends),
        *(rows.rows.data_ptr(), rows.slots.data_ptr(), rows.slots.shape[0]),
        STORAGE_CODES[dtype],
    )
    kernels.correct(byref(args), torch.get_num_threads())
