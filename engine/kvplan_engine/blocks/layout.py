"""How a model's KV lies in the blocks of the pool: groups of layers, and each part's place in a bundle. No torch.

Layers that keep and drop the same tokens form a group. For each logical block of ``block_size`` tokens a sequence
holds one bundle in each group of tokens, ``width`` blocks of the pool, and in a group of states one for all its tokens:

    8 full and 40 window layers, all of one size    a block is K and V of 8 layers
      full      logical block 0: [7]                   1: [12]
      window    logical block 0: [2 9 4 11 5]          1: [3 8 0 6 10]
    16 full layers with 48 layers of states         a block is K and V of 16 layers
      full      logical block 0: [7]                   1: [12]
      state     [1 2 3 ... 147]

The rule by which the size of a block follows from the units is in ARCHITECTURE.md, "The KV layout".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from kvplan_engine.description.kept_units import KeptUnit
from kvplan_engine.description.mixers import FULL, Kept

# Units into blocks of one size: in order, and one that does not fit begins the next block. No torch.


@dataclass(frozen=True, slots=True)
class KeptPart:
    """One part of a layer: ``num_units`` units of ``unit_bytes`` each. A page of tokens is one unit."""

    key: tuple[int, str]
    num_units: int
    unit_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.num_units * self.unit_bytes


@dataclass(frozen=True, slots=True)
class Packing:
    """width: how many blocks are filled. starts: (block, offset in bytes) of each part's first unit."""

    width: int
    starts: tuple[tuple[int, int], ...]


def pack(parts: Sequence[KeptPart], block_bytes: int, alignment: int) -> Packing:
    """Fill blocks of ``block_bytes`` with ``parts``, which each begin at a multiple of ``alignment`` bytes."""
    block, offset = 0, 0
    starts = []
    for part in parts:
        size = part.unit_bytes
        offset = rounded_up(offset, alignment)
        if offset + size > block_bytes:
            block, offset = block + 1, 0
        starts.append((block, offset))
        num_behind = part.num_units - (block_bytes - offset) // size  # those that this block has no room for
        if num_behind <= 0:
            offset += part.num_units * size
            continue
        num_more = -(-num_behind // (block_bytes // size))
        block += num_more
        offset = (num_behind - (num_more - 1) * (block_bytes // size)) * size
    return Packing(block + 1, tuple(starts))


def packed_bytes(parts: Sequence[KeptPart], alignment: int) -> int:
    """The size of the smallest block that all ``parts`` fit into."""
    size = 0
    for part in parts:
        size = rounded_up(size, alignment) + part.num_bytes
    return rounded_up(size, alignment)


def rounded_up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


# Pages of integers with scales: codes of one byte, and behind them the float32 scales, aligned. No torch.
#
# keys of 2 heads of 3 tokens of 5 values     30 codes | 2 bytes unused | 6 scales, 24 bytes


SCALE_BYTES = 4


def scales_offset(num_codes: int) -> int:
    """Bytes from a page's codes to its scales."""
    return -(-num_codes // SCALE_BYTES) * SCALE_BYTES


def scaled_page_bytes(num_codes: int, num_scales: int) -> int:
    """Bytes of a page; a multiple of those of a scale, as all pages beside it are."""
    return scales_offset(num_codes) + num_scales * SCALE_BYTES


_GROUP_ORDER = ("full", "window", "chunk", "state")
_ALLOWED_WASTE = Fraction(2, 100)
_STATE_ALIGNMENT_BYTES = 16  # of parts and blocks beside states, which may be of another dtype than the KV


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part begins in a bundle: ``offset`` bytes into its ``slot``-th block."""

    slot: int
    offset: int


@dataclass(frozen=True)
class KvGroup:
    """Layers that keep the same tokens. width: blocks in a bundle. unit_bytes: what of a bundle holds content.

    places: (layer, part) -> where it begins.
    """

    kept: Kept
    width: int
    unit_bytes: int
    places: Mapping[tuple[int, str], Place]

    @cached_property
    def is_state(self) -> bool:
        return self.kept.kind == "state"

    def first_kept_token(self, num_computed_tokens: int) -> int:
        """The first token that the next query still sees, when ``num_computed_tokens`` are computed; 0 for a state."""
        tokens = self.kept.tokens
        if tokens is None:
            return 0
        if self.kept.kind == "window":
            return max(0, num_computed_tokens - tokens + 1)
        return num_computed_tokens // tokens * tokens


@dataclass(frozen=True)
class KvLayout:
    """Blocks of ``block_bytes`` bytes for ``block_size`` tokens. groups: full, windows and chunks by length, states.

    num_planes: equal parts of a block of which each holds whole layers, so that each part of all blocks may lie apart.
    """

    block_bytes: int
    block_size: int
    groups: tuple[KvGroup, ...]
    num_planes: int = field(default=1, repr=False)  # where bytes lie, not which: files stay valid

    @cached_property
    def is_uniform(self) -> bool:
        """Whether a logical block is one block: all layers keep the same tokens."""
        return len(self.groups) == 1 and self.groups[0].width == 1 and not self.groups[0].is_state

    @cached_property
    def widths(self) -> list[int]:
        return [group.width for group in self.groups]

    @cached_property
    def forgets(self) -> bool:
        """Whether some layers need only the last tokens."""
        return bool(self.forgetful)

    @cached_property
    def forgetful(self) -> list[int]:
        """Which of the groups keep the last tokens only."""
        return [place for place, group in enumerate(self.groups) if group.kept.tokens is not None]

    @cached_property
    def has_states(self) -> bool:
        return any(group.is_state for group in self.groups)

    @cached_property
    def token_blocks(self) -> int:
        """Blocks of one logical block: one bundle in each group of tokens."""
        return sum(group.width for group in self.groups if not group.is_state)

    def blocks_for(self, num_tokens: int, in_flight: int = 1) -> int:
        """The most blocks that one sequence holds while it grows to ``num_tokens``, at most ``in_flight`` per step."""
        bundles = self.most_bundles(num_tokens, in_flight)
        return sum(group.width * number for group, number in zip(self.groups, bundles, strict=True))

    def most_bundles(self, num_tokens: int, in_flight: int = 1) -> list[int]:
        """The most bundles that one sequence holds in each group: see ``blocks_for``."""
        return [self._most_bundles(group, num_tokens, in_flight) for group in self.groups]

    def _most_bundles(self, group: KvGroup, num_tokens: int, in_flight: int) -> int:
        if group.is_state:
            return 1
        filled = -(-num_tokens // self.block_size)
        if group.kept.tokens is None:
            return filled
        return min(filled, -(-(group.kept.tokens + in_flight - 2) // self.block_size) + 1)

    def blocks_held(self, num_computed_tokens: int, num_tokens: int) -> int:
        """Blocks that one sequence holds to compute the tokens from ``num_computed_tokens`` to ``num_tokens`` - 1."""
        end, size = -(-num_tokens // self.block_size), self.block_size
        if self.is_uniform and not self.forgets:
            return end
        return sum(
            group.width * (1 if group.is_state else end - group.first_kept_token(num_computed_tokens) // size)
            for group in self.groups
        )

    def pool_tokens(self, num_blocks: int, max_model_len: int) -> int:
        """Tokens of a pool of ``num_blocks``: in sequences of ``max_model_len``, as vLLM counts; in any where all of
        them are kept by every layer.
        """
        if self.is_uniform and not self.forgets:
            return num_blocks * self.block_size
        return num_blocks * max_model_len // self.blocks_for(max_model_len)

    def largest_sequence(self, num_blocks: int, limit: int, in_flight: int = 1) -> int:
        """The longest sequence, in tokens, that ``num_blocks`` are enough for; at most ``limit``."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_for(middle, min(in_flight, middle)) <= num_blocks:
                low = middle
            else:
                high = middle - 1
        return low


def uniform_layout(block_size: int, *, block_bytes: int = 1, kept: Kept = FULL) -> KvLayout:
    """All layers keep the same tokens, whatever they are: a logical block is one block of ``block_bytes``."""
    return KvLayout(block_bytes, block_size, (KvGroup(kept, 1, block_bytes, {}),))


def plan_layout(
    units: Sequence[KeptUnit], block_size: int, dtype_bytes: Callable[[str], int], *, has_scales: bool = False
) -> KvLayout:
    """The layout of a model that keeps ``units``; dtype_bytes: bytes of one element, by ``KeptUnit.dtype``.

    has_scales: what is in the KV cache's dtype, of one byte then, has ``KeptUnit.num_scales`` for each token.
    ValueError for a model that keeps nothing.
    """
    if not units:
        raise ValueError("the model keeps nothing of a sequence")
    parts: dict[Kept, list[KeptPart]] = {}
    for unit in units:
        parts.setdefault(unit.kept, []).append(_part(unit, block_size, dtype_bytes, has_scales))
    ordered = {kept: parts[kept] for kept in sorted(parts, key=_order)}
    alignment = _STATE_ALIGNMENT_BYTES if any(kept.kind == "state" for kept in parts) else 1
    block_bytes = _block_bytes(ordered, alignment)
    groups = tuple(_group(kept, members, block_bytes, alignment) for kept, members in ordered.items())
    return KvLayout(block_bytes, block_size, groups, _num_planes(ordered, groups, block_bytes))


def _num_planes(parts: Mapping[Kept, list[KeptPart]], groups: Sequence[KvGroup], block_bytes: int) -> int:
    """The most equal parts of a block between which no layer is cut; 1 beside states, whose rows fill whole blocks."""
    if any(group.is_state for group in groups):
        return 1
    extents: dict[tuple[Kept, int, int], tuple[int, int]] = {}  # of a layer within a block: first byte, end
    for group in groups:
        for part in parts[group.kept]:
            place = group.places[part.key]
            key = (group.kept, place.slot, part.key[0])
            begin, end = extents.get(key, (block_bytes, 0))
            extents[key] = min(begin, place.offset), max(end, place.offset + part.num_bytes)
    largest = max(end - begin for begin, end in extents.values())
    for number in range(block_bytes // largest, 1, -1):
        size = block_bytes // number
        if block_bytes % number == 0 and all(begin // size == (end - 1) // size for begin, end in extents.values()):
            return number
    return 1


def _order(kept: Kept) -> tuple[int, int]:
    return _GROUP_ORDER.index(kept.kind), kept.tokens or 0


def _part(unit: KeptUnit, block_size: int, dtype_bytes: Callable[[str], int], has_scales: bool) -> KeptPart:
    if has_scales and unit.num_scales:
        page_bytes = scaled_page_bytes(block_size * unit.row_elements, block_size * unit.num_scales)
        return KeptPart((unit.layer, unit.part), 1, page_bytes)
    row_bytes = unit.row_elements * dtype_bytes(unit.dtype)
    if unit.kept.kind == "state":
        return KeptPart((unit.layer, unit.part), unit.num_rows, row_bytes)
    return KeptPart((unit.layer, unit.part), 1, -(-block_size // unit.tokens_per_row) * row_bytes)


def _block_bytes(groups: Mapping[Kept, list[KeptPart]], alignment: int) -> int:
    token_groups = [members for kept, members in groups.items() if kept.kind != "state"]
    if not token_groups:
        (states,) = groups.values()
        return packed_bytes(states, alignment)
    largest_unit = max(part.unit_bytes for members in groups.values() for part in members)
    smallest = min(token_groups, key=_num_bytes)
    best: tuple[Fraction, int] | None = None
    for number in range(1, len(smallest) + 1):
        size = _largest_run(smallest, -(-len(smallest) // number), alignment)
        if size < largest_unit:
            continue
        waste = max(_waste(members, size, alignment) for members in token_groups)
        if waste <= _ALLOWED_WASTE:
            return size
        if best is None or waste < best[0]:
            best = waste, size
    return best[1] if best is not None else rounded_up(largest_unit, alignment)


def _largest_run(parts: Sequence[KeptPart], length: int, alignment: int) -> int:
    return max(packed_bytes(parts[first : first + length], alignment) for first in range(0, len(parts), length))


def _waste(parts: Sequence[KeptPart], block_bytes: int, alignment: int) -> Fraction:
    return Fraction(pack(parts, block_bytes, alignment).width * block_bytes, _num_bytes(parts)) - 1


def _num_bytes(parts: Iterable[KeptPart]) -> int:
    return sum(part.num_bytes for part in parts)


def _group(kept: Kept, parts: Sequence[KeptPart], block_bytes: int, alignment: int) -> KvGroup:
    packed = pack(parts, block_bytes, alignment)
    places = {part.key: Place(*start) for part, start in zip(parts, packed.starts, strict=True)}
    return KvGroup(kept, packed.width, _num_bytes(parts), places)
