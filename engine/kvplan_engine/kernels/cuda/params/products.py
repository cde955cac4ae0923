"""The argument structures of the products' kernels: quantised weights, adapters, and few rows.

As ``common``, field by field as csrc/cuda declares them.
"""

from __future__ import annotations

import ctypes

_POINTER = ctypes.c_void_p
_INT64 = ctypes.c_longlong
_INT32 = ctypes.c_int
_FLOAT = ctypes.c_float

MOST_STACKED = 4
"""Products that an adapter's stacked matrix has (lora.cuh)."""


class QuantisedParams(ctypes.Structure):
    """quantised.cuh: quantised_product."""

    _fields_ = (
        ("x", _POINTER),
        ("codes", _POINTER),
        ("scales", _POINTER),
        ("minimums", _POINTER),
        ("book", _POINTER),
        ("bias", _POINTER),
        ("out", _POINTER),
        ("x_stride", _INT64),
        ("out_stride", _INT64),
        ("inputs", _INT32),
        ("outputs", _INT32),
        ("rows", _INT32),
        ("zero", _FLOAT),
    )


class WidenParams(ctypes.Structure):
    """quantised_widen.cu: widen_rows."""

    _fields_ = (
        ("codes", _POINTER),
        ("scales", _POINTER),
        ("minimums", _POINTER),
        ("book", _POINTER),
        ("indices", _POINTER),
        ("order", _POINTER),
        ("out", _POINTER),
        ("out_stride", _INT64),
        ("inputs", _INT32),
        ("first_output", _INT32),
        ("zero", _FLOAT),
    )


class QuantiseParams(ctypes.Structure):
    """quantise_rows.cu: quantise_rows."""

    _fields_ = (
        ("x", _POINTER),
        ("out", _POINTER),
        ("scales", _POINTER),
        ("x_stride", _INT64),
        ("inputs", _INT32),
    )


class LoraParams(ctypes.Structure):
    """lora.cuh: lora_shrink and lora_expand."""

    _fields_ = (
        ("x", _POINTER),
        ("down", _POINTER),
        ("up", _POINTER),
        ("inner", _POINTER),
        ("out", _POINTER),
        ("rows", _POINTER),
        ("slots", _POINTER),
        ("x_stride", _INT64),
        ("out_stride", _INT64),
        ("inputs", _INT32),
        ("outputs", _INT32),
        ("rank", _INT32),
        ("stacked", _INT32),
        ("ends", _INT32 * MOST_STACKED),
    )


class SkinnyParams(ctypes.Structure):
    """skinny_mma.cu: skinny_product."""

    _fields_ = (
        ("x", _POINTER),
        ("weight", _POINTER),
        ("bias", _POINTER),
        ("residual", _POINTER),
        ("out", _POINTER),
        ("parts", _POINTER),
        ("finished", _POINTER),
        ("x_stride", _INT64),
        ("residual_stride", _INT64),
        ("out_stride", _INT64),
        ("inputs", _INT32),
        ("outputs", _INT32),
        ("rows", _INT32),
        ("spans", _INT32),
        ("is_early", _INT32),
    )
