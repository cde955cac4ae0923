"""The C structures of layers with a state (csrc/include/kvplan_states.h is the other side)."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p

MOST_TAPS = 8
"""KVPLAN_MOST_TAPS."""


class StateArgs(ctypes.Structure):
    """struct kvplan_state."""

    _fields_ = (
        ("blocks", c_void_p),
        ("block_bytes", c_int64),
        ("num_blocks", c_int64),
        ("tables", c_void_p),
        ("table_stride", c_int64),
        ("table_width", c_int64),
        ("query_starts", c_void_p),
        ("positions", c_void_p),
        ("num_sequences", c_int64),
        ("num_tokens", c_int64),
        ("slot", c_int64),
        ("offset", c_int64),
        ("rows", c_int64),
        ("columns", c_int64),
        ("storage", c_int32),
    )


class ConvolutionArgs(ctypes.Structure):
    """struct kvplan_convolution."""

    _fields_ = (
        ("state", StateArgs),
        ("x", c_void_p),
        ("out", c_void_p),
        ("x_stride", c_int64),
        ("out_stride", c_int64),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("channels", c_int64),
        ("taps", c_int64),
        ("silu", c_int32),
        ("storage", c_int32),
    )
