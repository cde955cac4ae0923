"""The choice of tokens as the C side takes it (csrc/include/kvplan_cpu.h)."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p


class ChoiceArgs(ctypes.Structure):
    """struct kvplan_choice."""

    _fields_ = (
        ("query", c_void_p),
        ("weights", c_void_p),
        ("query_row_stride", c_int64),
        ("weight_row_stride", c_int64),
        ("keys", c_void_p),
        ("block_stride", c_int64),
        ("num_blocks", c_int64),
        ("block_tables", c_void_p),
        ("block_table_stride", c_int64),
        ("block_table_width", c_int64),
        ("seq_lens", c_void_p),
        ("query_starts", c_void_p),
        ("num_sequences", c_int64),
        ("num_tokens", c_int64),
        ("num_heads", c_int64),
        ("head_size", c_int64),
        ("block_size", c_int64),
        ("chosen", c_void_p),
        ("top_k", c_int64),
        ("storage", c_int32),
        ("kv_storage", c_int32),
    )
