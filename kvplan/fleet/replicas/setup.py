"""Everything that the play of one replica needs: its scheduler's rules, its clock, its pool of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.simulation.interface import StepClock

GroupKind = Literal["full", "sliding", "chunked", "state"]


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """``count`` groups of layers that keep the same tokens, in blocks of ``block_size`` tokens of the shared pool."""

    kind: GroupKind
    block_size: int
    window_tokens: int | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """The blocks of one data-parallel group. num_blocks: those that requests can have."""

    groups: tuple[CacheGroup, ...]
    num_blocks: int
    caches_prefixes: bool = True

    @staticmethod
    def full_attention(block_size: int, num_blocks: int, *, caches_prefixes: bool = True) -> PoolLayout:
        """Return the layout of a model all of whose layers keep all tokens."""
        return PoolLayout((CacheGroup("full", block_size),), num_blocks, caches_prefixes)


@dataclass(frozen=True)
class ReplicaSetup:
    """One replica of a deployment."""

    rules: SchedulingRules
    clock: StepClock
    pool: PoolLayout
