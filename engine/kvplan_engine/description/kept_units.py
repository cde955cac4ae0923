"""What each layer keeps of a sequence: the units from which the pool's layout is made (``blocks/layout.py``).

A token unit is one part of one layer (its keys, its values, its latents): ``elements`` for each token. A state unit is
one part of a layer's state: ``num_rows`` rows of ``row_elements``, for the sequence as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvplan_engine.description.mixers import (
    FULL,
    STATE,
    Attention,
    CompressedAttention,
    CrossAttention,
    Indexer,
    Kept,
    LatentAttention,
    Mixer,
    State,
)
from kvplan_engine.description.model import ModelDescription

UnitPart = Literal[
    "keys", "values", "latent", "index", "index_tail", "compressed", "compressed_index", "conv", "recurrent", "cross"
]


@dataclass(frozen=True, slots=True)
class KeptUnit:
    """One part of what layer ``layer`` keeps.

    Of tokens: ``num_rows`` 0, ``row_elements`` per token, or per ``tokens_per_row`` tokens. Of a state: ``num_rows``
    rows of ``row_elements``. dtype: a torch dtype's name; "kv" for the KV cache's, "model" for the model's. num_scales:
    of a token where the KV cache has scales, one for each head; 0 for what cannot be kept with scales.
    """

    layer: int
    part: UnitPart
    kept: Kept
    row_elements: int
    num_rows: int = 0
    tokens_per_row: int = 1
    dtype: str = "kv"
    num_scales: int = 0


def kept_units(model: ModelDescription, *, encoder_tokens: int | None = None) -> list[KeptUnit]:
    """All units of ``model``, layer by layer; of one layer keys before values, a convolution before its state.

    encoder_tokens: what a cross attention sees where the architecture does not fix it. ValueError without it then.
    """
    return [
        unit
        for index, layer in enumerate(model.layers)
        for mixer in layer.mixers
        for unit in _units_of(index, mixer, encoder_tokens)
    ]


def _units_of(layer: int, mixer: Mixer, encoder_tokens: int | None) -> Iterator[KeptUnit]:
    match mixer:
        case Attention(reads_layer=None):
            heads = mixer.num_kv_heads
            yield KeptUnit(layer, "keys", mixer.kept, heads * mixer.key_size, num_scales=heads)
            yield KeptUnit(layer, "values", mixer.kept, heads * mixer.value_size, num_scales=heads)
            if mixer.indexer is not None:
                yield from _index_units(layer, mixer.indexer)
        case Attention():
            return
        case LatentAttention():
            yield KeptUnit(layer, "latent", FULL, mixer.kv_rank + mixer.rope_size)
            if mixer.indexer is not None:
                yield from _index_units(layer, mixer.indexer)
        case CompressedAttention():
            yield KeptUnit(layer, "latent", mixer.kept, mixer.head_size)
            if mixer.ratio is not None and mixer.keeps_vectors:
                yield KeptUnit(layer, "compressed", FULL, mixer.head_size, tokens_per_row=mixer.ratio)
                if mixer.indexer is not None:
                    yield KeptUnit(layer, "compressed_index", FULL, mixer.indexer.head_size, tokens_per_row=mixer.ratio)
        case State():
            yield from state_units(layer, mixer)
        case CrossAttention():
            tokens = mixer.encoder_tokens or encoder_tokens
            if tokens is None:
                raise ValueError("the config does not say how many tokens its encoder gives")
            size = mixer.num_kv_heads * (mixer.key_size + mixer.value_size)
            yield KeptUnit(layer, "cross", STATE, size, num_rows=tokens)


def _index_units(layer: int, index: Indexer) -> Iterator[KeptUnit]:
    """One key for each pool of tokens, and what is kept of the tokens of the last pool, which is not complete."""
    size = index.head_size
    yield KeptUnit(layer, "index", FULL, size, tokens_per_row=index.pool, dtype=index.key_dtype)
    if index.pool == 1:
        return
    if index.key_dtype == "model":  # a key is the mean of keys
        yield KeptUnit(layer, "index_tail", STATE, size, num_rows=index.pool, dtype="model")
    else:  # of keys and gates
        rows = index.pool if index.key_dtype == "kv" else index.pool - 1
        yield KeptUnit(layer, "index_tail", STATE, 2 * size, num_rows=rows, dtype="bfloat16")


def state_units(layer: int, state: State) -> Iterator[KeptUnit]:
    """What layer ``layer`` keeps with ``state``: a convolution's inputs before a recurrent state."""
    if state.conv_kernel > 1:
        dtype = state.conv_dtype or "model"
        yield KeptUnit(layer, "conv", STATE, state.conv_channels, num_rows=state.conv_kernel - 1, dtype=dtype)
    if state.recurrent_shape:
        *outer, columns = state.recurrent_shape
        rows = 1
        for extent in outer:
            rows *= extent
        yield KeptUnit(layer, "recurrent", STATE, columns, num_rows=rows, dtype=state.recurrent_dtype or "model")
