"""The C structures of Mamba's layers (csrc/include/kvplan_mamba.h is the other side)."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

from kvplan_engine.kernels.cpu.state_args import StateArgs

_ROWS = (
    ("state", StateArgs),
    ("x", c_void_p),
    ("steps", c_void_p),
    ("b", c_void_p),
    ("c", c_void_p),
    ("out", c_void_p),
    ("x_stride", c_int64),
    ("steps_stride", c_int64),
    ("b_stride", c_int64),
    ("c_stride", c_int64),
    ("out_stride", c_int64),
    ("decay", c_void_p),
    ("skip", c_void_p),
    ("step_bias", c_void_p),
)


class Mamba1Args(ctypes.Structure):
    """struct kvplan_mamba1."""

    _fields_ = (*_ROWS, ("storage", c_int32))


class Mamba2Args(ctypes.Structure):
    """struct kvplan_mamba2."""

    _fields_ = (
        *_ROWS,
        ("least_step", c_float),
        ("most_step", c_float),
        ("heads", c_int64),
        ("rows", c_int64),
        ("groups", c_int64),
        ("storage", c_int32),
    )


class GatedRowsArgs(ctypes.Structure):
    """struct kvplan_gated_rows."""

    _fields_ = (
        ("x", c_void_p),
        ("gate", c_void_p),
        ("x_stride", c_int64),
        ("gate_stride", c_int64),
        ("rows", c_int64),
        ("width", c_int64),
        ("groups", c_int64),
        ("weight", c_void_p),
        ("eps", c_float),
        ("same_weight", c_int32),
        ("norm_first", c_int32),
        ("sigmoid", c_int32),
        ("storage", c_int32),
    )
