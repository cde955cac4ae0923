"""The products of all heads as the C side takes them (csrc/include/kvplan_cpu.h)."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p


class HeadProductsArgs(ctypes.Structure):
    """struct kvplan_head_products."""

    _fields_ = (
        ("x", c_void_p),
        ("packed", c_void_p),
        ("out", c_void_p),
        ("x_row_stride", c_int64),
        ("x_head_stride", c_int64),
        ("out_row_stride", c_int64),
        ("out_head_stride", c_int64),
        ("rows", c_int64),
        ("heads", c_int64),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("storage", c_int32),
    )
