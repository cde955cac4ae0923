"""A cache of transformers for one sequence, whose tokens lie in the pool.

transformers asks a cache for what came before and hands it what is new. Here ``update`` writes the new tokens into the
pool and returns all that these see of the sequence, gathered by its block table:

    window 4, blocks of 4, tokens 0 .. 9 held from block 1 on, token 9 is new      offset 6, keys of tokens 6 .. 9
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)

from kvplan_engine.attention.backend import AttentionMetadata, KvSlots
from kvplan_engine.attention.checks import read_blocks
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.description.mixers import Attention, Kept, LatentAttention
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError
from kvplan_engine.models.kv_pool import KvPool, keeper_in

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from kvplan_engine.attention.layer_cache import LayerCache
    from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.description.mixers import State

_WRITER = ReferenceBackend()


@dataclass(frozen=True, slots=True)
class HeldTokens:
    """One layer's tokens of one sequence: ``rows`` of the step are new, at positions from ``position`` on.

    held_from: the position of the first token in the pool. offset: of the first that a new one sees. latent_size: of a
    latent, which transformers takes for keys, and what turns by position for values; the pool has both as one row.
    """

    cache: LayerCache
    metadata: AttentionMetadata
    sequence: int
    rows: slice
    position: int
    held_from: int
    offset: int
    latent_size: int | None = None

    @property
    def num_new(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def num_seen(self) -> int:
        """Tokens from ``offset`` on, the new ones included."""
        return self.position + self.num_new - self.offset

    def write(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """New keys and values [hkv, n, d] into the pool. EngineError where they do not fit its pages."""
        slots = self.metadata.slots
        if self.latent_size is not None:
            keys, values = torch.cat([keys, values], dim=-1), keys
        for name, states, pages in (("keys", keys, self.cache.keys), ("values", values, self.cache.values)):
            wanted = (pages.shape[1], self.num_new, pages.shape[3])
            if tuple(states.shape) != wanted:
                raise EngineError(
                    f"layer {self.cache.layer} caches {name} {tuple(states.shape)}, the pool has {wanted}."
                )
        own = KvSlots(slots.keys[self.rows], None if slots.values is None else slots.values[self.rows])
        _WRITER.write_kv(keys.transpose(0, 1), values.transpose(0, 1), self.cache, own)

    def read(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [1, hkv, num_seen, d] of all tokens from ``offset`` on, as transformers gave them."""
        tables = self.metadata.block_tables
        keys = self._gathered(self.cache.keys, self.cache.key_scales, tables, dtype)
        if self.latent_size is not None:
            return keys[..., : self.latent_size], keys[..., self.latent_size :]
        value_tables = tables if self.metadata.value_tables is None else self.metadata.value_tables
        return keys, self._gathered(self.cache.values, self.cache.value_scales, value_tables, dtype)

    def _gathered(
        self, pages: torch.Tensor, scales: torch.Tensor | None, tables: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """[1, hkv, num_seen, d] of pages [num_blocks, hkv, block_size, d]."""
        end = self.position + self.num_new - self.held_from
        num_blocks = -(-end // pages.shape[2])
        found = read_blocks(pages, scales, tables[self.sequence, :num_blocks], dtype)
        return found[None, :, self.offset - self.held_from : end]


class _InPool:
    """What replaces the storage of a cache layer of transformers; ``held`` is set for each sequence and step."""

    held: HeldTokens

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Stores the new tokens; keys and values of all that they see.

        Some classes repeat each KV head for its query heads before they cache it (Falcon): the pool has it once.
        """
        repeats = max(1, key_states.shape[1] // self.held.cache.num_kv_heads)
        self.held.write(key_states[0, ::repeats], value_states[0, ::repeats])
        keys, values = self.held.read(key_states.dtype)
        return keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many tokens ``update`` will return, and the position of the first."""
        return self.held.num_seen, self.held.offset

    def get_seq_length(self) -> int:
        """Tokens before the step's."""
        return self.held.position


_KEEP_TOKENS = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)
_IN_POOL = {kind: type(f"Pool{kind.__name__}", (_InPool, kind), {}) for kind in _KEEP_TOKENS}
"""What takes the place of each kind of layer that keeps tokens; a state beside them stays as it is."""


@dataclass(frozen=True, slots=True)
class SequenceCache:
    """The cache of one sequence for one forward pass; ``keep`` puts into the pool what is not there yet."""

    cache: DynamicCache
    keep: Callable[[], None]


class PoolCaches:
    """Makes the cache of one sequence after the other. EngineError where a layer keeps what the pool does not."""

    def __init__(self, model: ModelDescription, config: PretrainedConfig) -> None:
        self._model, self._config = model, config
        layers = self._layers()
        if len(layers) < model.num_layers:
            raise EngineError(
                f"transformers keeps something of {len(layers)} layers, the engine of {model.num_layers}."
            )
        for index, layer in enumerate(layers):
            self._check(index, layer)
        self._states = StateCopies(model, layers)

    def cache_of(self, batch: StepBatch, kv: KvPool, sequence: int, rows: slice) -> SequenceCache:
        """Return the cache for ``sequence`` of ``batch``, whose new tokens are ``rows``."""
        position = int(batch.positions[rows.start])
        layers = self._layers()
        for index, layer in enumerate(layers):
            if isinstance(layer, _InPool):
                layer.held = self._held(index, batch, kv, sequence, rows)
        made = DynamicCache()
        made.layers, made.layer_class_to_replicate = layers, None
        if batch.states is None:
            return SequenceCache(made, lambda: None)
        blocks = batch.states.tables[sequence]
        if position:
            self._states.fill(layers, kv, blocks)
        return SequenceCache(made, partial(self._states.take, layers, kv, blocks))

    def _held(self, index: int, batch: StepBatch, kv: KvPool, sequence: int, rows: slice) -> HeldTokens:
        cache, attention = kv.of(index), keeper_in(self._model.layers[index])
        metadata, position = batch.attention[cache.tables], int(batch.positions[rows.start])
        behind = int(batch.positions[int(metadata.query_starts[sequence + 1]) - 1]) + 1  # also where ``rows`` are fewer
        held_from = behind - int(metadata.seq_lens[sequence])
        if isinstance(attention, LatentAttention):
            return HeldTokens(cache, metadata, sequence, rows, position, held_from, held_from, attention.kv_rank)
        assert attention is not None, "only layers that keep tokens are asked"
        offset = max(held_from, _first_seen(attention.kept, position))
        return HeldTokens(cache, metadata, sequence, rows, position, held_from, offset)

    def _layers(self) -> list[Any]:
        """The layers of a cache of transformers, with those that keep tokens in the pool."""
        made = DynamicCache(config=self._config).layers
        return [_in_pool(layer) if type(layer) in _IN_POOL else layer for layer in made]

    def _check(self, index: int, layer: Any) -> None:
        attention = keeper_in(self._model.layers[index]) if index < self._model.num_layers else None
        keeps = attention is not None and getattr(attention, "reads_layer", None) is None
        if keeps != isinstance(layer, _InPool):
            raise EngineError(f"layer {index} keeps other things in transformers than the engine describes.")
        if isinstance(attention, Attention) and keeps and attention.kept.tokens is not None and not layer.is_sliding:
            raise EngineError(
                f"layer {index} keeps all tokens in transformers, and {attention.kept.tokens} in the pool."
            )


def _first_seen(kept: Kept, position: int) -> int:
    """The first token that the one at ``position`` sees. transformers leaves a mask out where it need not hide any."""
    if kept.tokens is None:
        return 0
    return position // kept.tokens * kept.tokens if kept.kind == "chunk" else max(0, position - kept.tokens + 1)


def _in_pool(layer: Any) -> Any:
    """``layer`` of transformers, with its tokens in the pool."""
    twin: Any = object.__new__(_IN_POOL[type(layer)])
    vars(twin).update(vars(layer))
    return twin


# The states of one sequence, from the pool into a cache of transformers and back.
#
# part          in the pool                                       in transformers
# conv          [kernel - 1, channels], the oldest token first    [1, channels, kernel], whose first column is unused
# recurrent     [rows, columns]                                   [1, ...], as the class has it


class StateCopies:
    """Copies the states of a model's layers. EngineError for a class that keeps several states in one layer."""

    def __init__(self, model: ModelDescription, layers: list[Any]) -> None:
        self._states: dict[int, State] = {}
        for index, layer in enumerate(model.layers):
            for mixer in layer.mixers:
                if isinstance(mixer, State):
                    self._states[index] = mixer
        for index in self._states:
            if getattr(layers[index], "number_of_states", 0) != 1:
                raise EngineError(f"layer {index} does not keep one state in transformers, as the engine describes it.")
        self._shapes: dict[int, torch.Size] = {}
        """Of each layer's recurrent state, as the class left it last: all sequences begin with one that is new."""

    def fill(self, layers: list[Any], kv: KvPool, blocks: torch.Tensor) -> None:
        """The states of the bundle ``blocks`` [width] into ``layers`` of a new cache."""
        for index, state in self._states.items():
            layer = layers[index]
            layer.has_previous_state[0] = True
            if state.conv_kernel > 1:
                rows = kv.state(index, "conv").load(blocks)
                self._set(layer, "conv", torch.nn.functional.pad(rows.t()[None], (1, 0)))
                layer.conv_kernel_size[0] = state.conv_kernel
            if state.recurrent_shape:
                rows = kv.state(index, "recurrent").load(blocks)
                self._set(layer, "recurrent", rows.reshape(self._shapes[index]))

    def take(self, layers: list[Any], kv: KvPool, blocks: torch.Tensor) -> None:
        """What ``layers`` hold after a forward pass into the bundle ``blocks`` [width]."""
        for index, state in self._states.items():
            layer = layers[index]
            if state.conv_kernel > 1:
                kept = layer.conv_states[0][0, :, 1 - state.conv_kernel :]
                kv.state(index, "conv").store(blocks, kept.t())
            if state.recurrent_shape:
                recurrent = layer.recurrent_states[0]
                self._shapes[index] = recurrent.shape
                kv.state(index, "recurrent").store(blocks, recurrent.reshape(-1, state.recurrent_shape[-1]))

    def _set(self, layer: Any, part: str, value: torch.Tensor) -> None:
        getattr(layer, f"{part}_states")[0] = value.contiguous()
        getattr(layer, f"is_{part}_states_initialized")[0] = True
        layer.device, layer.dtype = value.device, value.dtype
