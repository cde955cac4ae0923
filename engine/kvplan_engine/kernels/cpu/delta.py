"""The gated delta rule by the compiled CPU kernel (csrc/cpu/states/state_delta.cpp), and its C structure."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

import torch

from kvplan_engine.kernels.arguments import check_rows, check_vector
from kvplan_engine.kernels.cpu.state_args import StateArgs
from kvplan_engine.kernels.states.delta import DeltaRule, DeltaTokens

MOST_KEY_SIZE = 256
"""KVPLAN_MOST_KEY_SIZE."""


class DeltaRuleArgs(ctypes.Structure):
    """struct kvplan_delta_rule."""

    _fields_ = (
        ("state", StateArgs),
        ("query", c_void_p),
        ("key", c_void_p),
        ("value", c_void_p),
        ("out", c_void_p),
        ("decay", c_void_p),
        ("strength", c_void_p),
        ("query_stride", c_int64),
        ("key_stride", c_int64),
        ("value_stride", c_int64),
        ("out_stride", c_int64),
        ("decay_stride", c_int64),
        ("strength_stride", c_int64),
        ("rate", c_void_p),
        ("decay_bias", c_void_p),
        ("heads", c_int64),
        ("key_heads", c_int64),
        ("key_size", c_int64),
        ("value_size", c_int64),
        ("scale", c_float),
        ("strength_scale", c_float),
        ("element_decays", c_int32),
        ("storage", c_int32),
    )


def delta_args(rule: DeltaRule, tokens: DeltaTokens, state: StateArgs, storage: int) -> DeltaRuleArgs:
    """What the kernel reads and writes. ValueError for tensors of other shapes or dtypes than the rule's."""
    _check(rule, tokens, state.num_tokens)
    rows = (tokens.query, tokens.key, tokens.value, tokens.out, tokens.decay, tokens.strength)
    bias = rule.decay_bias
    return DeltaRuleArgs(
        state,
        *(None if each is None else each.data_ptr() for each in rows),
        *(0 if each is None else each.stride(0) for each in rows),
        *(rule.rate.data_ptr(), None if bias is None else bias.data_ptr()),
        *(rule.num_heads, rule.key_heads, rule.key_size, rule.value_size),
        *(rule.scale, rule.strength_scale, rule.has_element_decays, storage),
    )


def _check(rule: DeltaRule, tokens: DeltaTokens, num_tokens: int) -> None:
    dtype = tokens.value.dtype
    keys, values = rule.key_heads * rule.key_size, rule.num_heads * rule.value_size
    for name, columns in (("query", keys), ("key", keys), ("value", values), ("out", values)):
        check_rows(name, getattr(tokens, name), (num_tokens, columns), dtype)
    check_vector("rate", rule.rate, rule.num_heads, torch.float32)
    if (rule.decay_bias is None) != (tokens.decay is None):
        raise ValueError("decays of tokens come with a bias, and fixed ones without")
    if rule.decay_bias is not None and tokens.decay is not None:
        columns = rule.num_heads * (rule.key_size if rule.has_element_decays else 1)
        check_vector("decay_bias", rule.decay_bias, columns, torch.float32)
        check_rows("decay", tokens.decay, (num_tokens, columns), dtype)
    if tokens.strength is not None:
        check_rows("strength", tokens.strength, (num_tokens, rule.num_heads), dtype)
