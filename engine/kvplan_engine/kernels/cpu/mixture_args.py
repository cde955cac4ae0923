"""The C structures of a mixture of experts (csrc/include/kvplan_cpu.h is the other side), and its numbers."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

SCORING_CODES = {"softmax": 0, "sigmoid": 1, "softmax_of_top": 2, "sparse_mixer": 3}
"""enum kvplan_scoring."""
GROUP_CODES = {"max": 0, "top2_sum": 1}
"""enum kvplan_group_scoring."""
EXPERT_ACTIVATION_CODES = {
    ("gelu_tanh", False): 1,
    ("gelu", False): 2,
    ("silu", True): 3,
    ("gelu_tanh", True): 4,
    ("swiglu_oai", True): 5,
    ("relu2", False): 6,
}
"""enum kvplan_activation, by an expert's activation and whether it is gated."""


class RouterArgs(ctypes.Structure):
    """struct kvplan_router."""

    _fields_ = (
        ("packed", c_void_p),
        ("bias", c_void_p),
        ("correction", c_void_p),
        ("num_experts", c_int64),
        ("top_k", c_int64),
        ("num_groups", c_int64),
        ("top_groups", c_int64),
        ("scale", c_float),
        ("jitter", c_float),
        ("scoring", c_int32),
        ("group_scoring", c_int32),
        ("normalised", c_int32),
        ("shared_gate", c_int32),
    )


class ExpertsArgs(ctypes.Structure):
    """struct kvplan_experts."""

    _fields_ = (
        ("up", c_void_p),
        ("up_bias", c_void_p),
        ("down", c_void_p),
        ("down_bias", c_void_p),
        ("count", c_int64),
        ("size", c_int64),
        ("limit", c_float),
        ("activation", c_int32),
        ("up_format", c_void_p),
        ("down_format", c_void_p),
    )


class MixtureArgs(ctypes.Structure):
    """struct kvplan_mixture."""

    _fields_ = (
        ("router", RouterArgs),
        ("experts", ExpertsArgs),
        ("shared", ExpertsArgs),
        ("first_expert", c_int64),
        ("x", c_void_p),
        ("out", c_void_p),
        ("x_stride", c_int64),
        ("out_stride", c_int64),
        ("rows", c_int64),
        ("hidden", c_int64),
        ("expert_ids", c_void_p),
        ("expert_weights", c_void_p),
        ("inner", c_void_p),
        ("storage", c_int32),
    )
