"""The parameters of attention over an encoder's outputs."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan_engine.description.mixers import CrossAttention
from kvplan_engine.description.parameters.parameter import Parameter, norm, projection


def cross_parameters(attention: CrossAttention, hidden_size: int) -> Iterator[Parameter]:
    """Yield the parameters of one layer. The encoder's outputs are as wide as the decoder's hidden state.

    bias: of queries, values and the output; keys have none (Whisper).
    """
    key_size = attention.num_kv_heads * attention.key_size
    value_size = attention.num_kv_heads * attention.value_size
    yield from projection("query", attention.num_heads * attention.key_size, hidden_size, bias=attention.bias)
    yield from projection("key", key_size, hidden_size)
    yield from projection("value", value_size, hidden_size, bias=attention.bias)
    yield from projection("output", hidden_size, attention.num_heads * attention.value_size, bias=attention.bias)
    if attention.head_norm:
        yield from norm("query_norm", "rms", attention.key_size)
        yield from norm("key_norm", "rms", attention.key_size)
