"""How kvplan's own engine lays unlike layers into one pool of equal blocks: ARCHITECTURE.md, "The KV layout".

Layers that keep and drop the same tokens are a group, and a group takes as many blocks for a logical block of tokens as
its units fill: its ``width``. What is decided here is how large a block is, so that hardly a byte of any stays empty.
The engine derives the same layout from its own description of a model; tests/agreement compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvplan.catalog.spec import LayerSpec, ModelSpec
from kvplan.estimate.kv_cache import CacheSettings
from kvplan.estimate.kv_groups import FULL, KEPT_KINDS, STATE, Kept, KvGroup, blocks_for
from kvplan.estimate.kvplan.parts import KvPart, layer_parts

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
