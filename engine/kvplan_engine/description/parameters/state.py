"""The parameters of layers with a state, kind by kind."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from kvplan_engine.description.mixers import State
from kvplan_engine.description.parameters.parameter import Parameter, Rows, norm, projection


def state_parameters(state: State, hidden_size: int) -> Iterator[Parameter]:
    """Yield the parameters of one layer."""
    match state.kind:
        case "mamba1":
            return _mamba1(state, hidden_size)
        case "mamba2":
            return _mamba2(state, hidden_size)
        case "gated_delta":
            return _gated_delta(state, hidden_size)
        case "kimi_delta":
            return _kimi_delta(state, hidden_size)
        case "short_conv":
            return _short_conv(state, hidden_size)
        case "ngram_conv" | "stream_conv":
            return _convolution(state)
        case "linear_attention":
            return _linear_attention(state, hidden_size)


def _convolution(state: State, rows: Rows = ()) -> Iterator[Parameter]:
    """One filter for each channel."""
    yield Parameter("conv", (state.conv_channels, state.conv_taps or state.conv_kernel), "matrix", rows=rows)
    if state.conv_bias:
        yield Parameter("conv", (state.conv_channels,), "bias", "bias")


def _decay(*sizes: int) -> Iterator[Parameter]:
    yield Parameter("A_log", sizes, "bias", "")


def _mamba1(state: State, hidden_size: int) -> Iterator[Parameter]:
    """Channels with a state of ``columns`` each; the step comes through a matrix of low rank."""
    *_, inner, columns = state.recurrent_shape
    yield from projection("in", (("input", inner), ("gate", inner)), hidden_size, bias=state.bias)
    yield from _convolution(state)
    yield from projection("x", (("step", state.rank), ("B", columns), ("C", columns)), inner)
    yield from projection("step", inner, state.rank, bias=True)
    yield from _decay(inner, columns)
    yield Parameter("D", (inner,), "bias", "")
    yield from projection("out", hidden_size, inner, bias=state.bias)
    if state.norms:  # Jamba's
        yield from norm("step_norm", "rms", state.rank)
        yield from norm("B_norm", "rms", columns)
        yield from norm("C_norm", "rms", columns)


def _mamba2(state: State, hidden_size: int) -> Iterator[Parameter]:
    """Heads of ``rows`` x ``columns``; B and C are shared by the heads of a group."""
    heads, rows, columns = state.recurrent_shape
    inner, group = heads * rows, state.num_groups * columns
    stacked: Rows = (("gate", inner), ("input", inner), ("B", group), ("C", group), ("step", heads))
    yield from projection("in", stacked, hidden_size, bias=state.bias)
    yield from _convolution(state)
    yield from _decay(heads)
    yield Parameter("D", (heads,), "bias", "")
    yield Parameter("step_bias", (heads,), "bias", "")
    if state.norms:
        yield from norm("gated_norm", "rms", inner)
    yield from projection("out", hidden_size, inner, bias=state.output_bias)


def _gated_delta(state: State, hidden_size: int) -> Iterator[Parameter]:
    """Queries and keys of ``key_heads``, values of ``num_heads``; a decay and a write strength of each of these."""
    keys, values = state.key_heads * state.key_size, state.num_heads * state.value_size
    stacked: Rows = (("query", keys), ("key", keys), ("value", values), ("gate", values))
    yield from projection("in", stacked, hidden_size)
    yield from projection(
        "decay_and_strength", (("decay", state.num_heads), ("strength", state.num_heads)), hidden_size
    )
    yield from _convolution(state, stacked[:3])
    yield from _decay(state.num_heads)
    yield Parameter("step_bias", (state.num_heads,), "bias", "")
    yield from norm("gated_norm", "rms", state.value_size)
    yield from projection("out", hidden_size, values)


def _kimi_delta(state: State, hidden_size: int) -> Iterator[Parameter]:
    """Yield the parameters of gated delta, with a decay of each element of a key; decay and gate come through matrices
    of low rank.

    full_gate, full_decay: through one.
    """
    size = state.num_heads * state.key_size
    stacked: Rows = (("query", size), ("key", size), ("value", size))
    yield from projection("qkv", stacked, hidden_size)
    yield from _convolution(state, stacked)
    yield from projection("strength", state.num_heads, hidden_size)
    for part, is_full in (("decay", state.full_decay), ("gate", state.full_gate)):
        if is_full:
            yield from projection(part, size, hidden_size)
        else:
            yield from projection(f"{part}_down", state.rank, hidden_size)
            yield from projection(f"{part}_up", size, state.rank)
    yield from _decay(state.num_heads)
    yield Parameter("step_bias", (size,), "bias", "")
    yield from norm("gated_norm", "rms", state.value_size)
    yield from projection("out", hidden_size, size)


def _short_conv(state: State, hidden_size: int) -> Iterator[Parameter]:
    """A convolution between two gates (LFM2)."""
    stacked: Rows = (("B", hidden_size), ("C", hidden_size), ("input", hidden_size))
    yield from projection("in", stacked, hidden_size, bias=state.bias)
    yield from _convolution(state)
    yield from projection("out", hidden_size, hidden_size, bias=state.bias)


def _linear_attention(state: State, hidden_size: int) -> Iterator[Parameter]:
    """Lightning attention (MiniMax): decays are fixed, so only projections, a gate and norms have weights."""
    heads, rows, _ = state.recurrent_shape
    size = prod((heads, rows))
    yield from projection("qkv", (("query", size), ("key", size), ("value", size)), hidden_size, bias=state.bias)
    if state.norms:
        yield from norm("query_norm", "rms", state.key_size)
        yield from norm("key_norm", "rms", state.key_size)
    yield from projection("gate", size, hidden_size)
    yield from norm("output_norm", "rms", size)
    yield from projection("out", hidden_size, size)
