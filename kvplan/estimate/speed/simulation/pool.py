"""The pool of a simulation: how many blocks sequences hold, take and give back. The rule is ARCHITECTURE.md's.

Before tokens c .. c + m - 1 are computed a sequence holds, in each group of layers, the bundles from the first token
that c still sees to the last of them; one that decodes looks after this where it needs another logical block, one that
computes a chunk in every step. A state is one bundle from the first token on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvplan.estimate.kv_groups import STATE
from kvplan.estimate.speed.simulation.interface import BatchLimits

# Share of the pool that stays free when a sequence is admitted beside running ones.
_WATERMARK = 0.01


@dataclass(slots=True)
class Prefix:
    """A shared beginning of prompts. num_logical: blocks of it that have been computed.

    users: running sequences that began with them. num_held: blocks of the pool that these share, counted once for all.
    Those that nobody uses are free, and found all the same.
    """

    num_logical: int = 0
    num_held: int = 0
    users: list[Holding] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Holding:
    """What one sequence holds. num_computed: its tokens whose K and V lie in the pool.

    end: how many logical blocks it reaches. seen_from: how many tokens it had when it last gave back what no further
    one sees. num_blocks: its own. num_shared: logical blocks that are its prefix's.
    """

    prefix: Prefix = field(default_factory=Prefix)
    num_computed: int = 0
    end: int = 0
    seen_from: int = 0
    num_blocks: int = 0
    num_shared: int = 0


class SimulatedPool:
    """Counts free blocks. num_free: of ``limits.num_blocks``."""

    def __init__(self, limits: BatchLimits) -> None:
        self.num_free = limits.num_blocks
        self.has_states = any(group.kept == STATE for group in limits.groups)
        self._size = limits.block_size
        self._watermark = int(limits.num_blocks * _WATERMARK)
        self._tokens = [(group.kept, group.width) for group in limits.groups if group.kept != STATE]
        self._state_blocks = sum(group.width for group in limits.groups if group.kept == STATE)
        self._full_width = sum(width for kept, width in self._tokens if kept.tokens is None)
        self._forgetting = [each for each in self._tokens if each[0].tokens is not None]

    def _num_held(self, end: int, seen_from: int, num_shared: int = 0) -> int:
        """Own blocks of a sequence that reaches ``end`` logical blocks and keeps what token ``seen_from`` sees."""
        number = self._full_width * (end - num_shared) + (self._state_blocks if end else 0)
        for kept, width in self._forgetting:
            first = kept.first_needed(seen_from) // self._size
            number += width * (end - max(first, num_shared))
        return number

    def _num_shared_held(self, users: Iterable[Holding]) -> int:
        """Blocks of a prefix that some of ``users`` still sees."""
        running = list(users)
        if not running:
            return 0
        end = max(each.num_shared for each in running)
        number = self._full_width * end
        for kept, width in self._forgetting:
            first = min(kept.first_needed(each.seen_from) for each in running) // self._size
            number += width * max(end - first, 0)
        return number

    # ---- prefixes

    def has_room(self, num_found: int, num_tokens: int, prefix: Prefix, *, beside_others: bool) -> bool:
        """Whether a sequence may start that finds ``num_found`` logical blocks and computes up to ``num_tokens``."""
        seen_from = num_found * self._size
        needed = self._num_held(-(-num_tokens // self._size), seen_from, num_found)
        if num_found:
            new = Holding(prefix, end=num_found, seen_from=seen_from, num_shared=num_found)
            needed += self._num_shared_held([*prefix.users, new]) - prefix.num_held
        return needed + (self._watermark if beside_others else 0) <= self.num_free

    def adopt(self, holding: Holding, num_found: int) -> None:
        """Start from the computed blocks of the prefix."""
        holding.num_shared = holding.end = num_found
        holding.num_computed = holding.seen_from = num_found * self._size
        holding.prefix.users.append(holding)
        self._count_shared(holding.prefix)

    def share(self, holding: Holding, num_logical: int) -> None:
        """Let others use the first ``num_logical`` blocks, which this sequence has computed."""
        holding.prefix.num_logical = holding.num_shared = num_logical
        holding.prefix.users.append(holding)
        self._hold(holding, holding.end)

    def _count_shared(self, prefix: Prefix) -> None:
        number = self._num_shared_held(prefix.users)
        self.num_free -= number - prefix.num_held
        prefix.num_held = number

    # ---- a step

    def give_back(self, holding: Holding) -> None:
        """What the next token does not see becomes free."""
        if self._forgetting and holding.end:
            holding.seen_from = holding.num_computed
            self._hold(holding, holding.end)

    def take(self, holding: Holding, num_new: int) -> bool:
        """Blocks for the next tokens, if there are enough."""
        end = max(-(-(holding.num_computed + num_new) // self._size), holding.end)
        if self._num_held(end, holding.seen_from, holding.num_shared) - holding.num_blocks > self.num_free:
            return False
        self._hold(holding, end)
        return True

    def take_one_each(self, growing: list[Holding]) -> bool:
        """A logical block for the next token of each of ``growing``, if there are enough for all."""
        width = self._full_width + sum(width for _, width in self._forgetting)
        if len(growing) * width > self.num_free:
            return False
        for holding in growing:
            self._hold(holding, holding.end + 1)
        return True

    def _hold(self, holding: Holding, end: int) -> None:
        number = self._num_held(end, holding.seen_from, holding.num_shared)
        self.num_free -= number - holding.num_blocks
        holding.num_blocks, holding.end = number, end
        if holding.num_shared and (self._forgetting or not holding.prefix.num_held):
            self._count_shared(holding.prefix)

    def is_at_border(self, holding: Holding) -> bool:
        """Whether the next token needs another logical block."""
        return holding.num_computed >= holding.end * self._size

    def release(self, holding: Holding) -> None:
        """All blocks of a sequence that ends or is preempted."""
        self.num_free += holding.num_blocks
        if holding.num_shared:
            holding.prefix.users.remove(holding)
            self._count_shared(holding.prefix)
        holding.num_blocks = holding.num_shared = holding.end = holding.num_computed = holding.seen_from = 0

    # ---- many decode steps at once

    def steps_with_blocks(self, holdings: Iterable[Holding], most: int) -> int:
        """Decode steps, up to ``most``, for which the blocks suffice and in which nobody gives any back for good."""
        running = list(holdings)
        if self._forgetting:
            most = min(self._steps_before_fewer(each, most) for each in running)
        fits, above = 0, most + 1
        step = most
        while above - fits > 1:
            needed = sum(
                self._num_held(*self._after(each, step), each.num_shared) - each.num_blocks for each in running
            )
            fits, above = (step, above) if needed <= self.num_free else (fits, step)
            step = (fits + above) // 2
        return fits

    def decode(self, holding: Holding, num_steps: int) -> None:
        """Compute ``num_steps`` tokens one by one."""
        end, holding.seen_from = self._after(holding, num_steps)
        self._hold(holding, end)
        holding.num_computed += num_steps

    def _after(self, holding: Holding, num_steps: int) -> tuple[int, int]:
        """``end`` and ``seen_from`` after so many tokens: both change where the sequence needs a logical block."""
        end = -(-(holding.num_computed + num_steps) // self._size)
        if end <= holding.end:
            return holding.end, holding.seen_from
        return end, (end - 1) * self._size

    def _steps_before_fewer(self, holding: Holding, most: int) -> int:
        """Decode steps, up to ``most``, before the one in which a sequence holds fewer blocks than it did.

        That is where it needs its next logical block, if the chunks of its prompt were longer than a token; where a
        chunk of attention begins; and where a window leaves a block of a shared prefix behind. Else it only grows.
        """
        border = holding.end * self._size
        after = self._num_held(holding.end + 1, border, holding.num_shared)
        borders = [border] if after < holding.num_blocks else []
        for kept, _ in self._forgetting:
            first = kept.first_needed(holding.seen_from) // self._size
            if kept.kind == "chunk" and kept.tokens:
                begin = (holding.seen_from // kept.tokens + 1) * kept.tokens
            elif kept.tokens and first < holding.num_shared:
                begin = (first + 1) * self._size + kept.tokens - 1
            else:
                continue
            borders.append(max(-(-begin // self._size) * self._size, border))
        return min([most, *(each - holding.num_computed for each in borders)])
