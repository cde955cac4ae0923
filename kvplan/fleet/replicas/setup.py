"""Everything that the play of one replica needs: its scheduler's rules, its clock, its pool of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Literal

from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.simulation.interface import StepClock

GroupKind = Literal["full", "sliding", "chunked", "state", "fixed"]
"""fixed: a block for each request, which is never found again (a ring, a state where no prefixes are cached)."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """``count`` groups of layers that keep the same tokens, in blocks of ``block_size`` tokens of the shared pool.

    drops_a_block: the last block that is found is computed again, as its drafter needs hidden states (EAGLE and
    multi-token prediction).
    """

    kind: GroupKind
    block_size: int
    window_tokens: int | None = None
    count: int = 1
    drops_a_block: bool = False


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """The blocks of one data-parallel group. num_blocks: those that requests can have.

    pins_shared_prefixes: a prompt is cut where others went on differently, so that the state there is kept.
    exports_states: kernels write the state at the last block's end without a cut there.
    retention_interval: tokens after which windows and states are kept for others beside the places where prompts can be
    resumed: 0 for nowhere else, None for everywhere (see ``kept``).
    """

    groups: tuple[CacheGroup, ...]
    num_blocks: int
    caches_prefixes: bool = True
    pins_shared_prefixes: bool = True
    exports_states: bool = False
    retention_interval: int | None = 0

    @staticmethod
    def full_attention(block_size: int, num_blocks: int, *, caches_prefixes: bool = True) -> PoolLayout:
        """Return the layout of a model all of whose layers keep all tokens."""
        return PoolLayout((CacheGroup("full", block_size),), num_blocks, caches_prefixes)

    @property
    def drops_a_block(self) -> bool:
        """Whether a drafter has the last block that is found computed again."""
        return any(group.drops_a_block for group in self.groups)

    @property
    def hit_tokens(self) -> int:
        """Tokens of which what is found is a multiple."""
        return lcm(*(group.block_size for group in self.groups if group.kind != "fixed"))


@dataclass(frozen=True)
class ReplicaSetup:
    """One replica of a deployment."""

    rules: SchedulingRules
    clock: StepClock
    pool: PoolLayout
