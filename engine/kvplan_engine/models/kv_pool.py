"""The KV pool as the decoder's layers see it: where each layer's keys, values and states lie in its blocks."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvplan_engine.attention.layer_cache import LayerCache, TablePlace, latent_cache
from kvplan_engine.blocks.layout import SCALE_BYTES, KvLayout, Place, scales_offset
from kvplan_engine.description.kept_units import UnitPart, state_units
from kvplan_engine.description.mixers import Attention, LatentAttention, State
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.kernels.states.rows import StateRows

_PARTS_OF_TOKENS: tuple[tuple[UnitPart, UnitPart], ...] = (("keys", "values"), ("latent", "latent"))


def tables_of(layout: KvLayout, layer: int) -> TablePlace:
    """Which tables say where the tokens of ``layer``, which has KV of its own, lie; a latent is key and value."""
    for index, group in enumerate(layout.groups):
        for keys, values in _PARTS_OF_TOKENS:
            if (layer, keys) in group.places:
                return TablePlace(index, group.places[layer, keys].slot, group.places[layer, values].slot)
    raise KeyError(f"layer {layer} keeps no tokens")


def index_tables_of(layout: KvLayout, layer: int) -> TablePlace:
    """Which tables say where the index keys of ``layer`` lie."""
    for index, group in enumerate(layout.groups):
        if (layer, "index") in group.places:
            slot = group.places[layer, "index"].slot
            return TablePlace(index, slot, slot)
    raise KeyError(f"layer {layer} keeps no index")


def places_of(layout: KvLayout, model: ModelDescription, first_layer: int = 0) -> list[TablePlace]:
    """The tables of each layer with attention, in order, an index's before them. first_layer: see KvPool."""
    places: dict[int, TablePlace] = {}
    for index, layer in enumerate(model.layers):
        attention = keeper_in(layer)
        if isinstance(attention, LatentAttention) and attention.indexer is not None:
            places[-1 - index] = index_tables_of(layout, first_layer + index)
        if attention is not None:
            read = attention.reads_layer if isinstance(attention, Attention) else None
            places[index] = tables_of(layout, first_layer + index) if read is None else places[read]
    return list(places.values())


def keeper_in(layer: Layer) -> Attention | LatentAttention | None:
    """Which of a layer's mixers keeps something of each token."""
    return next((mixer for mixer in layer.mixers if isinstance(mixer, (Attention, LatentAttention))), None)


class KvPool:
    """planes [num_planes, num_blocks, plane_bytes] uint8: blocks laid out as ``layout`` says, with KV in ``dtype``.

    A block is its part of each plane, one behind the other: byte ``offset`` of a block lies in plane
    ``offset // plane_bytes``. With several planes, of which each holds whole layers, the pages of one layer in
    neighbouring blocks lie side by side.

    model_dtype: of states that name none of their own. layers: of each layer its place in the blocks, None for one
    without attention. first_layer: what the model's first layer is called in the layout: the layers of a draft model
    follow another's.
    """

    def __init__(
        self,
        planes: torch.Tensor,
        layout: KvLayout,
        model: ModelDescription,
        dtype: torch.dtype,
        model_dtype: torch.dtype,
        *,
        first_layer: int = 0,
    ) -> None:
        self.planes, self.layout, self.dtype = planes, layout, dtype
        self._first_layer = first_layer
        self.layers: list[LayerCache | None] = []
        self._indexes: dict[int, LayerCache] = {}
        self._states: dict[tuple[int, UnitPart], StateRows] = {}
        for index, layer in enumerate(model.layers):
            attention = keeper_in(layer)
            self.layers.append(None if attention is None else self._cache_of(index, attention))
            for mixer in layer.mixers:
                if isinstance(mixer, State):
                    self._add_states(index, mixer, model_dtype)

    def of(self, layer: int) -> LayerCache:
        """Where the keys and values of ``layer``, which has attention, lie."""
        cache = self.layers[layer]
        assert cache is not None, f"layer {layer} keeps no keys and values"
        return cache

    def index_of(self, layer: int) -> LayerCache:
        """Where the index keys of ``layer`` lie. KeyError where it has none."""
        return self._indexes[layer]

    def state(self, layer: int, part: UnitPart) -> StateRows:
        """Where the "conv" or "recurrent" part of the state of ``layer`` lies. KeyError where it has none."""
        return self._states[layer, part]

    def _add_states(self, index: int, state: State, model_dtype: torch.dtype) -> None:
        (places,) = (group.places for group in self.layout.groups if group.is_state)
        (blocks,) = self.planes  # rows of a state cross the places where planes would end
        for unit in state_units(index, state):
            place = places[index, unit.part]
            dtype = model_dtype if unit.dtype == "model" else getattr(torch, unit.dtype)
            rows = StateRows(blocks, dtype, unit.num_rows, unit.row_elements, place.slot, place.offset)
            self._states[index, unit.part] = rows

    def _cache_of(self, index: int, attention: Attention | LatentAttention) -> LayerCache:
        if isinstance(attention, LatentAttention):
            return self._latent_cache(index, attention)
        if attention.reads_layer is not None:
            return replace(self.of(attention.reads_layer), layer=index)
        index += self._first_layer
        tables = tables_of(self.layout, index)
        places = self.layout.groups[tables.group].places
        heads, size = attention.num_kv_heads, self.layout.block_size
        return LayerCache(
            self._pages(places[index, "keys"], (heads, size, attention.key_size)),
            self._pages(places[index, "values"], (heads, size, attention.value_size)),
            index,
            tables,
            self._scales(places[index, "keys"], (heads, size), attention.key_size),
            self._scales(places[index, "values"], (heads, size), attention.value_size),
        )

    def _latent_cache(self, index: int, attention: LatentAttention) -> LayerCache:
        if attention.indexer is not None:
            self._indexes[index] = self._index_cache(self._first_layer + index, attention.indexer.head_size)
        index += self._first_layer
        tables = tables_of(self.layout, index)
        place = self.layout.groups[tables.group].places[index, "latent"]
        rows = self._pages(place, (1, self.layout.block_size, attention.row_size))
        return latent_cache(rows, attention.kv_rank, index, tables)

    def _index_cache(self, index: int, size: int) -> LayerCache:
        tables = index_tables_of(self.layout, index)
        place = self.layout.groups[tables.group].places[index, "index"]
        return latent_cache(self._pages(place, (1, self.layout.block_size, size)), size, index, tables)

    def _pages(self, place: Place, shape: tuple[int, int, int]) -> torch.Tensor:
        """The pages [num_blocks, *shape] at ``place``, over the whole pool."""
        num_bytes = shape[0] * shape[1] * shape[2] * self.dtype.itemsize
        pages = self._bytes(place.offset, num_bytes)
        return pages.view(self.dtype).unflatten(1, shape)

    def _scales(self, place: Place, shape: tuple[int, int], head_size: int) -> torch.Tensor | None:
        """The scales [num_blocks, *shape] behind the integers of the page at ``place``; None for a pool without."""
        if self.dtype is not torch.int8:
            return None
        begin = place.offset + scales_offset(shape[0] * shape[1] * head_size)
        scales = self._bytes(begin, shape[0] * shape[1] * SCALE_BYTES)
        return scales.view(torch.float32).unflatten(1, shape)

    def _bytes(self, offset: int, num_bytes: int) -> torch.Tensor:
        """Return of every block the bytes from ``offset`` on: [num_blocks, num_bytes]."""
        plane, begin = divmod(offset, self.planes.shape[2])
        return self.planes[plane, :, begin : begin + num_bytes]
