"""Which blocks of windows, and which states, can be found when they are full: those where a prompt can be resumed.

vLLM gives the others no hash, so that they are taken first when they are free (reachable_block_mask of
SlidingWindowManager and of MambaManager in vllm/v1/core/single_type_kv_cache_manager.py, and replay_boundaries in
kv_cache_coordinator.py, read in 0.32.0 and 0.33.0). With ``--prefix-cache-retention-interval 0``, its default, a window
or a state is kept where the prompt it belongs to can be resumed and where other prompts went on differently; with so
many tokens, where each stretch of as many ends, too; without an interval, wherever a hit could end.

    prompt   |----|----|----|----|-     what is kept of a window of half a block, interval 0
    kept             =#        =#
                      ^ junction ^ last place before the prompt's last token
"""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.fleet.replicas.setup import CacheGroup


def resumed_at(num_prompt_tokens: int, alignment: int, *, drops_a_block: bool) -> tuple[int, ...]:
    """Tokens at which a later request with this prompt goes on: the same one, whose last token is computed again, or a
    longer one. A drafter that drops a block makes each one block less, and the two differ."""
    if not drops_a_block:
        return ((num_prompt_tokens - 1) // alignment * alignment,)
    same, longer = (tokens // alignment - 1 for tokens in (num_prompt_tokens - 1, num_prompt_tokens))
    return tuple(sorted({max(same, 0) * alignment, max(longer, 0) * alignment}))


class KeptBlocks:
    """The rule of one kind of groups. alignment: tokens of which a hit is a multiple; interval: see above."""

    def __init__(self, group: CacheGroup, alignment: int, interval: int | None) -> None:
        self._size, self._alignment = group.block_size, alignment
        self._shift = int(group.drops_a_block)
        self._needed = 1
        if group.kind == "sliding":
            self._needed = -(-((group.window_tokens or 0) - 1) // group.block_size) + self._shift
        self._is_sparse = interval is not None
        self._per_segment = self._segment_blocks(group, interval)
        #: whether every block is kept that is full
        self.is_all = self._per_segment is not None and self._needed >= self._per_segment

    def _segment_blocks(self, group: CacheGroup, interval: int | None) -> int | None:
        """Blocks from one place at which all prompts keep something to the next; None where there are none."""
        if group.kind not in ("sliding", "state") or self._alignment % group.block_size:
            return 1
        if interval is None:
            return 1 if group.kind == "state" else self._alignment // group.block_size
        return interval // group.block_size or None

    def stretches(self, first: int, last: int, places: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """Yield those of the blocks from ``first`` to ``last`` that are kept, of a request that can be resumed at
        ``places``, in tokens.
        """
        if self.is_all:
            if first < last:
                yield first, last
            return
        found = list(self._tails(first, last))
        if self._is_sparse:
            for place in places:
                end = place // self._alignment * self._alignment // self._size + self._shift
                found.append((max(end - self._needed, first), min(end, last)))
        reached = first
        for begin, end in sorted(found):
            if max(begin, reached) < end:
                yield max(begin, reached), end
                reached = end

    def _tails(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        if self._per_segment is None:
            return
        segment = max(first - self._shift, 0) // self._per_segment
        while segment * self._per_segment + self._shift < last:
            end = (segment + 1) * self._per_segment + self._shift
            yield max(end - self._needed, first), min(end, last)
            segment += 1

    def has(self, block: int, places: tuple[int, ...]) -> bool:
        """Whether this one is."""
        return self.is_all or any(self.stretches(block, block + 1, places))
