"""PyTorch's caching allocator, simulated on sizes: what a sequence of allocations leaves reserved.

Only the pool for large tensors, which decides at the sizes that matter here. A request takes the smallest free piece
that holds it, else a new segment; what is left of a piece stays a piece of its own, and neighbours that are both free
become one again. (pytorch: c10/cuda/CUDACachingAllocator.cpp, get_free_block, should_split, try_merge_blocks.)

With ``max_split_bytes`` (max_split_size_mb) a request of that size or more takes a piece whole, if it has at most
20 MiB too much, and a smaller one takes no piece of that size or more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvplan.units import MIB

_ROUNDING = 512
_SMALL_SEGMENT = 20 * MIB
_SMALL_REQUEST = 10 * MIB
_SEGMENT_STEP = 2 * MIB
_SPLIT_ABOVE = MIB


@dataclass(slots=True, eq=False)
class Piece:
    """A run of bytes of one segment, in use or free."""

    segment: int
    offset: int
    size: int


@dataclass(slots=True)
class CachingAllocator:
    """``reserved_bytes`` were asked of the driver, ``in_use_bytes`` are in use, ``peak_bytes`` were at most."""

    max_split_bytes: int | None = None
    reserved_bytes: int = 0
    in_use_bytes: int = 0
    peak_bytes: int = 0
    _segments: list[int] = field(default_factory=list)
    _free: list[Piece] = field(default_factory=list)

    @classmethod
    def with_pieces(cls, sizes: Iterable[int], max_split_bytes: int | None = None) -> CachingAllocator:
        """Return an allocator that has free pieces of ``sizes`` bytes, each of a segment that never becomes free."""
        kept = list(sizes)
        free = [Piece(number, 0, size) for number, size in enumerate(kept)]
        return cls(max_split_bytes, sum(kept), _segments=[size + 1 for size in kept], _free=free)

    @property
    def free_pieces(self) -> tuple[int, ...]:
        """The sizes of all free pieces, in bytes."""
        return tuple(piece.size for piece in self._free)

    def allocate(self, num_bytes: int) -> Piece:
        size = _round_up(num_bytes, _ROUNDING)
        piece = self._smallest_that_holds(size) or self._new_segment(size)
        left = piece.size - size
        if left > _SPLIT_ABOVE and not self._is_large(size):
            self._free.append(Piece(piece.segment, piece.offset + size, left))
            piece.size = size
        self.in_use_bytes += piece.size
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)
        return piece

    def release(self, *pieces: Piece) -> None:
        for piece in pieces:
            self.in_use_bytes -= piece.size
            self._free.append(self._merged(piece))

    def release_segments(self) -> None:
        """Give back what is free as a whole (torch.accelerator.empty_cache)."""
        for piece in [piece for piece in self._free if piece.size == self._segments[piece.segment]]:
            self.reserved_bytes -= piece.size
            self._free.remove(piece)

    def _smallest_that_holds(self, size: int) -> Piece | None:
        fitting = [piece for piece in self._free if piece.size >= size]
        if not fitting:
            return None
        found = min(fitting, key=lambda piece: piece.size)
        if self._is_large(found.size) and not (self._is_large(size) and found.size < size + _SMALL_SEGMENT):
            return None
        self._free.remove(found)
        return found

    def _is_large(self, size: int) -> bool:
        """Whether pieces of ``size`` bytes are never split."""
        return self.max_split_bytes is not None and size >= self.max_split_bytes

    def _new_segment(self, size: int) -> Piece:
        reserved = _SMALL_SEGMENT if size < _SMALL_REQUEST else _round_up(size, _SEGMENT_STEP)
        self.reserved_bytes += reserved
        self._segments.append(reserved)
        return Piece(len(self._segments) - 1, 0, reserved)

    def _merged(self, piece: Piece) -> Piece:
        merged = Piece(piece.segment, piece.offset, piece.size)
        for other in [other for other in self._free if other.segment == piece.segment]:
            if other.offset + other.size == merged.offset:
                merged.offset = other.offset
            elif merged.offset + merged.size != other.offset:
                continue
            merged.size += other.size
            self._free.remove(other)
        return merged


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
