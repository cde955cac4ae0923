"""The structures of csrc/include/kvplan_lora.h."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p


class LoraSlotsArgs(ctypes.Structure):
    """struct kvplan_lora_slots."""

    _fields_ = (
        ("down", c_void_p),
        ("up", c_void_p),
        ("rank", c_int64),
        ("stacked", c_int64),
        ("ends", ctypes.POINTER(c_int64)),
    )


class LoraRowsArgs(ctypes.Structure):
    """struct kvplan_lora_rows."""

    _fields_ = (
        ("rows", c_void_p),
        ("slots", c_void_p),
        ("groups", c_int64),
    )
