"""The inputs of a simulation (lengths, limits, a clock) and its result: a record of every step and request.

The simulation itself, its rules and its state, is in ``batching``; callers need only these types.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from kvplan.estimate.kv_groups import FULL, KvGroup

UNIFORM = (KvGroup(FULL, 1, 0),)
"""Every layer keeps all tokens: a logical block is one block of the pool."""


class ArrivingRequest(Protocol):
    """What the simulation needs to know of a request."""

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_output_tokens(self) -> int: ...

    @property
    def arrival_seconds(self) -> float: ...

    @property
    def prefix_index(self) -> int: ...

    @property
    def num_prefix_tokens(self) -> int: ...


class StepClock(Protocol):
    """How long a step takes."""

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        """Tokens computed, sequences they belong to, sequences that get a token, tokens whose K and V are read, and
        pairs of a token and one that it attends to."""
        ...


@runtime_checkable
class GroupClock(StepClock, Protocol):
    """How long a step of data-parallel groups takes that share their experts: as long as that of the fullest one."""

    def seconds_beside(
        self,
        num_met: float,
        num_tokens: float,
        num_sequences: float,
        num_sampled: float,
        num_kv_tokens: float,
        num_pairs: float,
    ) -> float:
        """Seconds of the fullest group, as ``seconds``, where ``num_met`` tokens of all groups meet in the experts."""
        ...


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The engine's settings that decide who runs. ``groups``: the layout of the pool."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    groups: tuple[KvGroup, ...] = UNIFORM
    caches_prefixes: bool = True


@dataclass(slots=True)
class StepLoads:
    """One entry per step, in order. ``end_seconds`` counts from the start, waiting for arrivals included."""

    num_tokens: list[int] = field(default_factory=list)
    num_sequences: list[int] = field(default_factory=list)
    num_sampled: list[int] = field(default_factory=list)
    num_kv_tokens: list[int] = field(default_factory=list)
    num_pairs: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    end_seconds: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.num_tokens)


@dataclass(slots=True)
class SimulatedRequest:
    """token_steps: (first, last + 1) of consecutive steps that each gave the request a token; several runs of them
    where it was preempted or left out. arrival_step: steps that had ended when it was sent."""

    num_prompt_tokens: int
    num_output_tokens: int
    arrival_seconds: float
    arrival_step: int
    token_steps: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Simulation:
    """The whole run. ``was_blocked``: at some step one waited only because the pool had too few free blocks.

    ``max_used_blocks``: blocks that the running sequences held in the step in which they held the most.
    """

    loads: StepLoads
    requests: tuple[SimulatedRequest, ...]
    max_running: int
    num_preemptions: int
    was_blocked: bool
    max_used_blocks: int = 0

    @property
    def status(self) -> str:
        """ok, queued or preempted, as a sweep's rows say it."""
        if self.num_preemptions:
            return "preempted"
        return "queued" if self.was_blocked else "ok"

    @property
    def num_steps(self) -> int:
        return len(self.loads)

    @property
    def seconds(self) -> float:
        """From the start to the last token."""
        return self.loads.end_seconds[-1] if len(self.loads) else 0.0

    @property
    def num_output_tokens(self) -> int:
        return sum(request.num_output_tokens for request in self.requests)

    @property
    def output_throughput(self) -> float:
        return self.num_output_tokens / self.seconds if self.seconds > 0 else 0.0
