"""The arguments of csrc/cpu/products/lora.cpp."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p


class LoraArgs(ctypes.Structure):
    """struct kvplan_lora."""

    _fields_ = (
        ("x", c_void_p),
        ("out", c_void_p),
        ("x_stride", c_int64),
        ("out_stride", c_int64),
        ("down", c_void_p),
        ("up", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("rank", c_int64),
        ("stacked", c_int64),
        ("ends", ctypes.POINTER(c_int64)),
        ("rows", c_void_p),
        ("slots", c_void_p),
        ("groups", c_int64),
        ("storage", c_int32),
    )
