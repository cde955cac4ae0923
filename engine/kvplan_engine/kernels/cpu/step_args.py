"""The structs of a layer of a decode or prefill step, and of what it is made of (csrc/include/kvplan_cpu.h)."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_void_p

from kvplan_engine.kernels.cpu.lora_args import LoraRowsArgs, LoraSlotsArgs
from kvplan_engine.kernels.cpu.mixture_args import MixtureArgs


class AttentionArgs(ctypes.Structure):
    """struct kvplan_attention."""

    _fields_ = (
        ("query", c_void_p),
        ("out", c_void_p),
        ("query_row_stride", c_int64),
        ("query_head_stride", c_int64),
        ("out_row_stride", c_int64),
        ("out_head_stride", c_int64),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("block_stride", c_int64),
        ("num_blocks", c_int64),
        ("block_tables", c_void_p),
        ("block_table_stride", c_int64),
        ("block_table_width", c_int64),
        ("value_tables", c_void_p),
        ("seq_lens", c_void_p),
        ("query_starts", c_void_p),
        ("num_sequences", c_int64),
        ("num_tokens", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_size", c_int64),
        ("block_size", c_int64),
        ("window", c_int64),
        ("scale", c_float),
        ("softcap", c_float),
        ("sinks", c_void_p),
        ("storage", c_int32),
        ("kv_storage", c_int32),
        ("slopes", c_void_p),
        ("value_size", c_int64),
        ("value_stride", c_int64),
        ("chosen", c_void_p),
        ("chosen_stride", c_int64),
        ("key_scales", c_void_p),
        ("value_scales", c_void_p),
    )


class KvWriteArgs(ctypes.Structure):
    """struct kvplan_kv_write."""

    _fields_ = (
        ("key", c_void_p),
        ("value", c_void_p),
        ("key_row_stride", c_int64),
        ("key_head_stride", c_int64),
        ("value_row_stride", c_int64),
        ("value_head_stride", c_int64),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("block_stride", c_int64),
        ("num_blocks", c_int64),
        ("slots", c_void_p),
        ("value_slots", c_void_p),
        ("num_tokens", c_int64),
        ("num_kv_heads", c_int64),
        ("head_size", c_int64),
        ("block_size", c_int64),
        ("storage", c_int32),
        ("kv_storage", c_int32),
        ("value_size", c_int64),
        ("key_scales", c_void_p),
        ("value_scales", c_void_p),
    )


class NormArgs(ctypes.Structure):
    """struct kvplan_norm."""

    _fields_ = (
        ("delta", c_void_p),
        ("x", c_void_p),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("out", c_void_p),
        ("rows", c_int64),
        ("width", c_int64),
        ("delta_stride", c_int64),
        ("x_stride", c_int64),
        ("out_stride", c_int64),
        ("eps", c_float),
        ("storage", c_int32),
        ("heads", c_int64),
    )


class WeightFormatArgs(ctypes.Structure):
    """struct kvplan_weight_format."""

    _fields_ = (
        ("code_book", c_void_p),
        ("input_order", c_void_p),
        ("bits", c_int32),
        ("zero", c_int32),
        ("group", c_int32),
        ("scale_storage", c_int32),
        ("has_minimum", c_int32),
        ("block", c_int32),
        ("rounds_inputs", c_int32),
    )


class PackedLinearArgs(ctypes.Structure):
    """struct kvplan_packed_linear."""


PackedLinearArgs._fields_ = (
    ("x", c_void_p),
    ("packed", c_void_p),
    ("bias", c_void_p),
    ("out", c_void_p),
    ("x_stride", c_int64),
    ("out_stride", c_int64),
    ("rows", c_int64),
    ("inputs", c_int64),
    ("outputs", c_int64),
    ("activation", c_int32),
    ("storage", c_int32),
    ("format", POINTER(WeightFormatArgs)),
    ("slots", POINTER(LoraSlotsArgs)),
    ("corrected", POINTER(LoraRowsArgs)),
    ("next", POINTER(PackedLinearArgs)),  # why they are not named in the class
)


class LayerArgs(ctypes.Structure):
    """struct kvplan_layer."""

    _fields_ = (
        *((name, PackedLinearArgs) for name in ("qkv", "output", "up", "down")),
        *((name, NormArgs) for name in ("mlp_norm", "next_norm", "query_norm", "key_norm")),
        *((name, NormArgs) for name in ("attention_post_norm", "mlp_post_norm")),
        ("mixture", POINTER(MixtureArgs)),
        *((name, c_int64) for name in ("place", "key_offset", "value_offset")),
    )


class LayerPlaceArgs(ctypes.Structure):
    """struct kvplan_layer_place."""

    _fields_ = (
        ("attention", POINTER(AttentionArgs)),
        ("write", POINTER(KvWriteArgs)),
        ("cos_sin", c_void_p),
        ("rope_rows", c_int64),
        ("rotary", c_int64),
    )


class LayersArgs(ctypes.Structure):
    """struct kvplan_layers."""

    _fields_ = (
        ("layers", POINTER(LayerArgs)),
        ("num_layers", c_int64),
        ("places", POINTER(LayerPlaceArgs)),
        *((name, c_void_p) for name in ("hidden", "normed", "delta", "qkv", "inner")),
        *((name, c_void_p) for name in ("expert_ids", "expert_weights", "expert_inner")),
        ("positions", c_void_p),
        ("last_attention", POINTER(AttentionArgs)),
        ("last_rows", c_void_p),
        ("last_hidden", c_void_p),
        ("corrected", POINTER(LoraRowsArgs)),
        ("last_corrected", POINTER(LoraRowsArgs)),
        ("operation_seconds", POINTER(c_double)),
    )
