"""The structures of csrc/cuda/sampling, field by field as the sources declare them: see ``common``."""

from __future__ import annotations

import ctypes

_POINTER = ctypes.c_void_p
_INT64 = ctypes.c_longlong
_INT32 = ctypes.c_int
_FLOAT = ctypes.c_float


class Listed(ctypes.Structure):
    """row.cuh: a token whose logit is changed by an amount."""

    _fields_ = (("token", _INT32), ("early", _FLOAT), ("late", _FLOAT))


class DrawRow(ctypes.Structure):
    """row.cuh: how one sequence's token is chosen. The address of what is listed is a number, as numpy stores it."""

    _fields_ = (
        ("key", ctypes.c_ulonglong),
        ("listed", ctypes.c_ulonglong),
        ("top_p", ctypes.c_double),
        ("num_listed", _INT32),
        ("early_until", _INT32),
        ("counts_row", _INT32),
        ("top_k", _INT32),
        ("scale", _FLOAT),
        ("max_distance", _FLOAT),
        ("repetition", _FLOAT),
        ("presence", _FLOAT),
        ("frequency", _FLOAT),
        ("unused", _INT32),
    )


class SampleParams(ctypes.Structure):
    """sample.cu: sample_rows."""

    _fields_ = (
        ("logits", _POINTER),
        ("draws", _POINTER),
        ("counts", _POINTER),
        ("positions", _POINTER),
        ("token_rows", _POINTER),
        ("logits_rows", _POINTER),
        ("out", _POINTER),
        ("limits", _POINTER),
        ("stride", _INT64),
        ("counts_stride", _INT64),
        ("width", _INT32),
    )
