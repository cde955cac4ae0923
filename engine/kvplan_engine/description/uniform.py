"""Models whose layers all keep as much of the same tokens."""

from __future__ import annotations

from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription


def attention_of(layer: Layer) -> Attention | None:
    """The layer's attention, where that is its only mixer and has keys and values of one size of its own."""
    if len(layer.mixers) != 1 or not isinstance(layer.mixers[0], Attention):
        return None
    attention = layer.mixers[0]
    keeps_both = attention.reads_layer is None and attention.key_size == attention.value_size
    return attention if keeps_both and attention.indexer is None else None


def uniform_attention(model: ModelDescription) -> Attention | None:
    """The first layer's attention, where all layers keep as many keys and values of the same tokens; None elsewhere."""
    found = [attention_of(layer) for layer in model.distinct_layers]
    first = found[0] if found else None
    if first is None:
        return None
    wanted = (first.num_kv_heads, first.key_size, first.kept)
    same = all(each is not None and (each.num_kv_heads, each.key_size, each.kept) == wanted for each in found)
    return first if same else None
