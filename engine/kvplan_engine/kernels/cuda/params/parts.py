"""The argument structures of the kernels that only some models need: mixtures of experts and layers with a state.

As ``common``, field by field as csrc/cuda declares them.
"""

from __future__ import annotations

import ctypes

_POINTER = ctypes.c_void_p
_INT64 = ctypes.c_longlong
_INT32 = ctypes.c_int
_FLOAT = ctypes.c_float


class ProductParams(ctypes.Structure):
    """mixture.cuh: expert_product."""

    _fields_ = (
        ("x", _POINTER),
        ("weight", _POINTER),
        ("bias", _POINTER),
        ("items", _POINTER),
        ("pairs", _POINTER),
        ("experts", _POINTER),
        ("out", _POINTER),
        ("x_stride", _INT64),
        ("out_stride", _INT64),
        ("inputs", _INT32),
        ("outputs", _INT32),
        ("first_output", _INT32),
        ("num_outputs", _INT32),
        ("num_pairs", _INT32),
        ("pairs_per_row", _INT32),
        ("limit", _FLOAT),
    )


class RouteParams(ctypes.Structure):
    """mixture_route.cu: choose_experts."""

    _fields_ = (
        ("logits", _POINTER),
        ("correction", _POINTER),
        ("x", _POINTER),
        ("shared_gate", _POINTER),
        ("ids", _POINTER),
        ("shares", _POINTER),
        ("shared_shares", _POINTER),
        ("num_filled", _POINTER),
        ("x_stride", _INT64),
        ("rows", _INT32),
        ("hidden", _INT32),
        ("first_expert", _INT32),
        ("held_experts", _INT32),
        ("scale", _FLOAT),
        ("jitter", _FLOAT),
    )


class SortParams(ctypes.Structure):
    """mixture_sort.cu: sort_pairs."""

    _fields_ = (
        ("experts", _POINTER),
        ("pairs", _POINTER),
        ("items", _POINTER),
        ("num_pairs", _INT32),
        ("max_items", _INT32),
    )


class SumParams(ctypes.Structure):
    """mixture_sum.cu: sum_experts."""

    _fields_ = (
        ("experts", _POINTER),
        ("products", _POINTER),
        ("shared", _POINTER),
        ("shares", _POINTER),
        ("shared_shares", _POINTER),
        ("out", _POINTER),
        ("out_stride", _INT64),
        ("top_k", _INT32),
        ("num_outputs", _INT32),
    )


class StatePlace(ctypes.Structure):
    """state.cuh: where a state lies; a part of the structures below."""

    _fields_ = (
        ("blocks", _POINTER),
        ("tables", _POINTER),
        ("query_starts", _POINTER),
        ("positions", _POINTER),
        ("block_bytes", _INT64),
        ("table_stride", _INT32),
        ("slot", _INT32),
        ("offset", _INT32),
        ("first_rows", _INT32),
        ("rows_each", _INT32),
    )


class ConvolutionParams(ctypes.Structure):
    """state_convolution.cu: convolve."""

    _fields_ = (
        ("state", StatePlace),
        ("x", _POINTER),
        ("out", _POINTER),
        ("weight", _POINTER),
        ("bias", _POINTER),
        ("x_stride", _INT64),
        ("out_stride", _INT64),
        ("channels", _INT32),
    )


class DeltaParams(ctypes.Structure):
    """state_delta.cu: delta_rule."""

    _fields_ = (
        ("state", StatePlace),
        ("query", _POINTER),
        ("key", _POINTER),
        ("value", _POINTER),
        ("out", _POINTER),
        ("decay", _POINTER),
        ("strength", _POINTER),
        ("rate", _POINTER),
        ("decay_bias", _POINTER),
        ("query_stride", _INT64),
        ("key_stride", _INT64),
        ("value_stride", _INT64),
        ("out_stride", _INT64),
        ("decay_stride", _INT64),
        ("strength_stride", _INT64),
        ("heads", _INT32),
        ("key_heads", _INT32),
        ("scale", _FLOAT),
        ("strength_scale", _FLOAT),
    )


class Mamba2Params(ctypes.Structure):
    """state_mamba2.cu: scan_mamba2."""

    _fields_ = (
        ("state", StatePlace),
        ("x", _POINTER),
        ("steps", _POINTER),
        ("b", _POINTER),
        ("c", _POINTER),
        ("out", _POINTER),
        ("decay", _POINTER),
        ("skip", _POINTER),
        ("step_bias", _POINTER),
        ("x_stride", _INT64),
        ("steps_stride", _INT64),
        ("b_stride", _INT64),
        ("c_stride", _INT64),
        ("out_stride", _INT64),
        ("heads", _INT32),
        ("groups", _INT32),
        ("least_step", _FLOAT),
        ("most_step", _FLOAT),
    )


class Mamba1Params(ctypes.Structure):
    """state_mamba1.cu: scan_mamba1."""

    _fields_ = (
        ("state", StatePlace),
        ("x", _POINTER),
        ("steps", _POINTER),
        ("b", _POINTER),
        ("c", _POINTER),
        ("out", _POINTER),
        ("decay", _POINTER),
        ("skip", _POINTER),
        ("step_bias", _POINTER),
        ("x_stride", _INT64),
        ("steps_stride", _INT64),
        ("b_stride", _INT64),
        ("c_stride", _INT64),
        ("out_stride", _INT64),
        ("channels", _INT32),
    )


class GateParams(ctypes.Structure):
    """gated_rows.cu: gate_rows."""

    _fields_ = (
        ("x", _POINTER),
        ("gate", _POINTER),
        ("weight", _POINTER),
        ("x_stride", _INT64),
        ("gate_stride", _INT64),
        ("width", _INT32),
        ("weight_stride", _INT32),
        ("epsilon", _FLOAT),
    )
