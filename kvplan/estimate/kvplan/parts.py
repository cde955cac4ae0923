"""What a layer keeps of a sequence in kvplan's own engine, part by part: the units that its blocks are made of.

``kv_cache.layer_entries`` counts the same elements as the architecture needs them; here they are cut as the engine lays
them down: keys and values apart, whole pages of ``block_size`` tokens, states row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.catalog.spec import (
    CompressedAttention,
    CrossAttention,
    LatentAttention,
    LayerSpec,
    Mixer,
    SoftmaxAttention,
    SparseIndexer,
    StateMixer,
    WindowKind,
)
from kvplan.errors import unhandled_kind
from kvplan.estimate.dtypes import element_bytes, head_scale_bytes
from kvplan.estimate.kv_cache import CacheSettings, refuse_scales
from kvplan.estimate.kv_groups import FULL, STATE, Kept, KeptKind

_KEPT_AS: dict[WindowKind, KeptKind] = {"full": "full", "sliding": "window", "chunked": "chunk"}


@dataclass(frozen=True, slots=True)
class KvPart:
    """``num_rows`` units of ``unit_bytes``: one page of tokens, or the rows of a state."""

    kept: Kept
    unit_bytes: int
    num_rows: int = 1

    @property
    def num_bytes(self) -> int:
        return self.unit_bytes * self.num_rows


def layer_parts(layer: LayerSpec, cache: CacheSettings, block_size: int, encoder_tokens: int) -> tuple[KvPart, ...]:
    """The parts of one layer, in order. ``encoder_tokens``: of a sequence, where the architecture does not fix them."""
    parts = [part for mixer in layer.mixers for part in _mixer_parts(mixer, cache, block_size)]
    if layer.cross_attention is not None:
        parts.append(_cross_part(layer.cross_attention, cache, encoder_tokens))
    return tuple(parts)


def _mixer_parts(mixer: Mixer, cache: CacheSettings, block_size: int) -> Iterator[KvPart]:
    if isinstance(mixer, SoftmaxAttention):
        return _softmax_parts(mixer, cache, block_size)
    if not isinstance(mixer, StateMixer):
        refuse_scales(cache.kv_dtype, "latents")
    if isinstance(mixer, LatentAttention):
        return _latent_parts(mixer, cache, block_size)
    if isinstance(mixer, CompressedAttention):
        return _compressed_parts(mixer, cache, block_size)
    if isinstance(mixer, StateMixer):
        return _state_parts(mixer, cache)
    raise unhandled_kind(mixer, "layer_parts")


def _softmax_parts(mixer: SoftmaxAttention, cache: CacheSettings, block_size: int) -> Iterator[KvPart]:
    """Keys, then values; none where another layer's are read."""
    if mixer.kv_shared_with is not None:
        return
    kind = _KEPT_AS[mixer.window_kind]
    kept = FULL if kind == "full" else Kept(kind, mixer.window_tokens)
    for head_size in (mixer.head_size_k, mixer.head_size_v):
        yield KvPart(kept, _page_bytes(mixer.num_kv_heads * block_size, head_size, cache.kv_dtype))
    if mixer.indexer is not None:
        refuse_scales(cache.kv_dtype, "index keys")
        yield from _index_parts(mixer.indexer, cache, block_size)


def _page_bytes(num_rows: int, head_size: int, kv_dtype: str) -> int:
    """Keys (or values) of ``num_rows`` tokens and heads; scales, if any, begin at a multiple of their size."""
    num_bytes, scale = num_rows * head_size * element_bytes(kv_dtype), head_scale_bytes(kv_dtype)
    return -(-num_bytes // scale) * scale + num_rows * scale if scale else num_bytes


def _latent_parts(mixer: LatentAttention, cache: CacheSettings, block_size: int) -> Iterator[KvPart]:
    """The latent, and keys of an index: one for each pool of tokens, and what an unfinished pool needs."""
    size, index = element_bytes(cache.kv_dtype), mixer.indexer
    yield KvPart(FULL, mixer.cache_elements_per_token * size * block_size)
    if index is not None:
        yield from _index_parts(index, cache, block_size)


def _index_parts(index: SparseIndexer, cache: CacheSettings, block_size: int) -> Iterator[KvPart]:
    """A key for each pool of tokens, and what is kept of the tokens of one that is not complete.

    Step 5's keys of pools are in 8 bits whatever the cache is in, and made as a pool's last token comes.
    """
    dtype = {"plain": "fp8", "model": cache.model_dtype}.get(index.key_format, cache.kv_dtype)
    yield KvPart(FULL, index.head_size * element_bytes(dtype) * -(-block_size // index.pool))
    if index.pool == 1:
        return
    if index.key_format == "model":
        yield KvPart(STATE, index.head_size * element_bytes(dtype), index.pool)
    else:
        rows = index.pool - 1 if index.key_format == "plain" else index.pool
        yield KvPart(STATE, 2 * index.head_size * element_bytes("bfloat16"), rows)


def _compressed_parts(mixer: CompressedAttention, cache: CacheSettings, block_size: int) -> Iterator[KvPart]:
    size = element_bytes(cache.kv_dtype)
    yield KvPart(Kept("window", mixer.window_tokens), mixer.head_size * size * block_size)
    if mixer.ratio is None or not mixer.keeps_vectors:
        return
    rows = -(-block_size // mixer.ratio)
    yield KvPart(FULL, mixer.head_size * size * rows)
    if mixer.indexer is not None:
        yield KvPart(FULL, mixer.indexer.head_size * size * rows)


def _state_parts(mixer: StateMixer, cache: CacheSettings) -> Iterator[KvPart]:
    """The convolution's inputs token by token, then the recurrent state in rows of its last axis."""
    if mixer.conv_kernel > 1:
        size = element_bytes(mixer.conv_dtype or cache.model_dtype)
        yield KvPart(STATE, (mixer.conv_channels + mixer.conv_group_channels) * size, mixer.conv_kernel - 1)
    if mixer.recurrent_shape:
        *outer, columns = mixer.recurrent_shape
        num_rows = 1
        for extent in outer:
            num_rows *= extent
        size = element_bytes(cache.state_dtype or mixer.recurrent_dtype or cache.model_dtype)
        yield KvPart(STATE, columns * size, num_rows)


def _cross_part(cross: CrossAttention, cache: CacheSettings, encoder_tokens: int) -> KvPart:
    refuse_scales(cache.kv_dtype, "an encoder's tokens")
    row = cross.num_kv_heads * (cross.head_size_k + cross.head_size_v) * element_bytes(cache.kv_dtype)
    return KvPart(STATE, row, cache.encoder_tokens or cross.encoder_tokens or encoder_tokens)
