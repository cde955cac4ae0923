"""The kernels' argument structures, field by field as csrc/cuda declares them.

A structure is passed by value as the kernel's only argument. ctypes lays fields out as the C++ compiler does; the
tests compare the sizes with what the compiled sources say.
"""

from __future__ import annotations

import ctypes

_POINTER = ctypes.c_void_p
_INT64 = ctypes.c_longlong
_INT32 = ctypes.c_int
_FLOAT = ctypes.c_float


class PlanParams(ctypes.Structure):
    """plan.cu: plan_attention; shared_prefix.cu: plan_shared_prefixes."""

    _fields_ = (
        ("seq_lens", _POINTER),
        ("query_starts", _POINTER),
        ("decode_items", _POINTER),
        ("prefill_items", _POINTER),
        ("block_tables", _POINTER),
        ("shared", _POINTER),
        ("first_items", _POINTER),
        ("num_sequences", _INT32),
        ("max_decode_items", _INT32),
        ("max_prefill_items", _INT32),
        ("window", _INT32),
        ("target_chunks", _INT32),
        ("min_chunk", _INT32),
        ("chunk_multiple", _INT32),
        ("group", _INT32),
        ("tile_rows", _INT32),
        ("target_tiles", _INT32),
        ("num_slots", _INT32),
        ("min_part", _INT32),
        ("table_stride", _INT32),
        ("block_size", _INT32),
        ("min_shared", _INT32),
    )


class AttentionParams(ctypes.Structure):
    """attention.cuh: decode_attention and prefill_attention."""

    _fields_ = (
        ("query", _POINTER),
        ("kv", _POINTER),
        ("block_tables", _POINTER),
        ("value_tables", _POINTER),
        ("seq_lens", _POINTER),
        ("query_starts", _POINTER),
        ("items", _POINTER),
        ("sinks", _POINTER),
        ("slopes", _POINTER),
        ("partial_sums", _POINTER),
        ("partial_stats", _POINTER),
        ("finished", _POINTER),
        ("first_items", _POINTER),
        ("out", _POINTER),
        ("block_stride", _INT64),
        ("value_offset", _INT64),
        ("query_stride", _INT64),
        ("out_stride", _INT64),
        ("table_stride", _INT32),
        ("num_query_heads", _INT32),
        ("window", _INT32),
        ("scale", _FLOAT),
        ("softcap", _FLOAT),
        ("key_scale", _FLOAT),
        ("value_scale", _FLOAT),
    )


class TensorMap(ctypes.Structure):
    """hopper.cuh: TensorMap."""

    _fields_ = (("words", ctypes.c_ulonglong * 16),)


class PrefillWgmmaParams(ctypes.Structure):
    """prefill_wgmma.cu: prefill_attention. C++ aligns it to 64 bytes, and so fills up the last of these."""

    _fields_ = (
        ("keys", TensorMap),
        ("values", TensorMap),
        ("attention", AttentionParams),
        ("_filler", ctypes.c_ubyte * (-ctypes.sizeof(AttentionParams) % 64)),
    )


class WriteParams(ctypes.Structure):
    """write_kv.cu: write_kv and rotate_heads."""

    _fields_ = (
        ("query", _POINTER),
        ("key", _POINTER),
        ("value", _POINTER),
        ("kv", _POINTER),
        ("slots", _POINTER),
        ("value_slots", _POINTER),
        ("positions", _POINTER),
        ("cos_sin", _POINTER),
        ("query_stride", _INT64),
        ("key_stride", _INT64),
        ("value_stride", _INT64),
        ("block_stride", _INT64),
        ("value_offset", _INT64),
        ("num_tokens", _INT32),
        ("num_query_heads", _INT32),
        ("num_kv_heads", _INT32),
        ("key_scale", _FLOAT),
        ("value_scale", _FLOAT),
    )


class CopyParams(ctypes.Structure):
    """copy_blocks.cu: copy_blocks."""

    _fields_ = (
        ("source", _POINTER),
        ("target", _POINTER),
        ("pairs", _POINTER),
        ("block_vectors", _INT64),
    )


MOST_INPUTS = 32
"""copy_inputs.cu: MOST_INPUTS of one launch."""


class InputRowsParams(ctypes.Structure):
    """copy_inputs.cu: InputRows."""

    _fields_ = (
        ("source", _POINTER),
        ("target", _POINTER),
        ("stride", _INT64),
        ("rows", _INT32),
        ("words", _INT32),
    )


class InputParams(ctypes.Structure):
    """copy_inputs.cu: copy_inputs."""

    _fields_ = (
        ("inputs", InputRowsParams * MOST_INPUTS),
        ("chosen", _POINTER),
    )


class NormParams(ctypes.Structure):
    """norm.cu: rms_norm and layer_norm."""

    _fields_ = (
        ("delta", _POINTER),
        ("x", _POINTER),
        ("weight", _POINTER),
        ("bias", _POINTER),
        ("out", _POINTER),
        ("delta_stride", _INT64),
        ("x_stride", _INT64),
        ("out_stride", _INT64),
        ("epsilon", _FLOAT),
    )


class ActivationParams(ctypes.Structure):
    """activation.cu: silu_and_mul, gelu_tanh and gelu_erf."""

    _fields_ = (
        ("x", _POINTER),
        ("out", _POINTER),
        ("x_stride", _INT64),
        ("out_stride", _INT64),
        ("width", _INT32),
    )


class ArgmaxParams(ctypes.Structure):
    """argmax.cu: argmax_rows."""

    _fields_ = (
        ("logits", _POINTER),
        ("out", _POINTER),
        ("stride", _INT64),
        ("width", _INT32),
    )
