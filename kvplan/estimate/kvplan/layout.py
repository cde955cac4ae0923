"""How kvplan's own engine lays unlike layers into one pool of equal blocks: ARCHITECTURE.md, "The KV layout".

Layers that keep and drop the same tokens are a group, and a group takes as many blocks for a logical block of tokens as
its units fill: its ``width``. What is decided here is how large a block is, so that hardly a byte of any stays empty.
The engine derives the same layout from its own description of a model; tests/agreement compares the two.

``layer_parts`` are the units that blocks are made of: what a layer keeps of a sequence, part by part.
``cache_entries.layer_entries`` counts the same elements as the architecture needs them; here they are cut as the engine
lays them down: keys and values apart, whole pages of ``block_size`` tokens, states row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvplan.catalog.spec import (
    CompressedAttention,
    CrossAttention,
    LatentAttention,
    LayerSpec,
    Mixer,
    ModelSpec,
    SoftmaxAttention,
    SparseIndexer,
    StateMixer,
    WindowKind,
)
from kvplan.errors import unhandled_kind
from kvplan.estimate.cache_entries import CacheSettings, refuse_scales
from kvplan.estimate.dtypes import element_bytes, head_scale_bytes
from kvplan.estimate.kv_groups import FULL, KEPT_KINDS, STATE, Kept, KeptKind, KvGroup, blocks_for

_KEPT_AS: dict[WindowKind, KeptKind] = {"full": "full", "sliding": "window", "chunked": "chunk"}
_LARGEST_WASTE = Fraction(2, 100)
_STATE_ALIGNMENT = 16
"""Bytes, in a layout with states: its float32 rows lie beside parts of two-byte and one-byte elements."""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Blocks of ``block_bytes``, of which each group takes ``width`` for ``block_size`` tokens (a state: for all)."""

    block_size: int
    block_bytes: int
    groups: tuple[KvGroup, ...]

    def blocks_for(self, num_tokens: int, in_flight: int = 1) -> int:
        """Blocks that one sequence comes to hold on its way to ``num_tokens``, at most ``in_flight`` of them a step."""
        return blocks_for(self.groups, self.block_size, num_tokens, in_flight)

    @property
    def is_uniform(self) -> bool:
        """Whether every layer keeps all tokens: a pool then holds so many tokens, whatever their sequences."""
        return len(self.groups) == 1 and self.groups[0].kept == FULL

    @property
    def has_states(self) -> bool:
        return any(group.kept == STATE for group in self.groups)

    @property
    def bytes_per_token(self) -> float:
        """Bytes of a token that every layer of tokens still sees."""
        return sum(group.unit_bytes for group in self.groups if group.kept != STATE) / self.block_size

    def pool_tokens(self, num_blocks: int, max_model_len: int) -> int:
        """Tokens of a pool filled with sequences of ``max_model_len``, or of any where the layout is uniform."""
        if self.is_uniform:
            return num_blocks * self.block_size
        return num_blocks * max_model_len // self.blocks_for(max_model_len) if self.groups else 0

    def longest_sequence(self, num_blocks: int, in_flight: int, limit: int) -> int:
        """Tokens, at most ``limit``, of the longest sequence that ``num_blocks`` hold, in steps of ``in_flight``."""
        fits, above = 0, limit + 1
        while above - fits > 1:
            tokens = (fits + above) // 2
            needed = self.blocks_for(tokens, min(in_flight, tokens))
            fits, above = (tokens, above) if needed <= num_blocks else (fits, tokens)
        return fits


def plan_layout(spec: ModelSpec, cache: CacheSettings, block_size: int, encoder_tokens: int = 1) -> KvLayout:
    """The layout of ``spec`` in blocks of ``block_size`` tokens.

    ``encoder_tokens``: of a sequence, where neither the settings nor the architecture say how many.
    """
    parts = _grouped(spec.layers, cache, block_size, encoder_tokens)
    alignment = _STATE_ALIGNMENT if STATE in parts else 1
    block_bytes = _block_bytes(parts, alignment)
    groups = tuple(
        KvGroup(kept, _num_blocks(of_group, block_bytes, alignment), _sum(of_group)) for kept, of_group in parts.items()
    )
    return KvLayout(block_size, block_bytes, groups)


def _grouped(
    layers: Sequence[LayerSpec], cache: CacheSettings, block_size: int, encoder_tokens: int
) -> dict[Kept, list[KvPart]]:
    """The parts of all layers, by what they keep, groups in the layout's order. Equal layers are looked at once."""
    known: dict[int, tuple[KvPart, ...]] = {}
    found: dict[Kept, list[KvPart]] = {}
    for layer in layers:
        if id(layer) not in known:
            known[id(layer)] = layer_parts(layer, cache, block_size, encoder_tokens)
        for part in known[id(layer)]:
            found.setdefault(part.kept, []).append(part)
    order = sorted(found, key=lambda kept: (KEPT_KINDS.index(kept.kind), kept.tokens or 0))
    return {kept: found[kept] for kept in order}


def _block_bytes(parts: dict[Kept, list[KvPart]], alignment: int) -> int:
    """Bytes of a block: a run of the smallest token group's units, cut so that no token group wastes much."""
    token_groups = [of_group for kept, of_group in parts.items() if kept != STATE]
    if not token_groups:
        return max((_packed_bytes(of_group, alignment) for of_group in parts.values()), default=0)
    smallest = min(token_groups, key=_sum)
    largest_unit = max(part.unit_bytes for of_group in parts.values() for part in of_group)
    best: tuple[Fraction, int] | None = None
    for size in _run_sizes(smallest, alignment):
        if size < largest_unit:
            continue
        waste = max(_waste(of_group, size, alignment) for of_group in token_groups)
        if waste <= _LARGEST_WASTE:
            return size
        if best is None or waste < best[0]:
            best = waste, size
    return best[1] if best is not None else _rounded_up(largest_unit, alignment)


def _run_sizes(parts: Sequence[KvPart], alignment: int) -> Iterator[int]:
    """Bytes of the largest run when ``parts`` are cut into runs of ceil(n / d), for d = 1, 2, ... n."""
    for num_runs in range(1, len(parts) + 1):
        length = -(-len(parts) // num_runs)
        runs = (parts[first : first + length] for first in range(0, len(parts), length))
        yield max(_packed_bytes(run, alignment) for run in runs)


def _waste(parts: Sequence[KvPart], block_bytes: int, alignment: int) -> Fraction:
    return Fraction(_num_blocks(parts, block_bytes, alignment) * block_bytes, _sum(parts)) - 1


def _num_blocks(parts: Sequence[KvPart], block_bytes: int, alignment: int) -> int:
    """Blocks that ``parts`` fill in order: a unit that does not fit what is left of a block begins the next one."""
    blocks, used = 0, block_bytes
    for part in parts:
        used = _rounded_up(used, alignment)
        left = part.num_rows - min(max(block_bytes - used, 0) // part.unit_bytes, part.num_rows)
        if not left:
            used += part.num_bytes
            continue
        in_each = block_bytes // part.unit_bytes
        more = -(-left // in_each)
        blocks += more
        used = (left - (more - 1) * in_each) * part.unit_bytes
    return blocks


def _packed_bytes(parts: Sequence[KvPart], alignment: int) -> int:
    """Bytes of ``parts`` in one run, each beginning at a multiple of ``alignment``, and as a whole one."""
    return sum(_rounded_up(part.num_bytes, alignment) for part in parts)


def _sum(parts: Sequence[KvPart]) -> int:
    return sum(part.num_bytes for part in parts)


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


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
