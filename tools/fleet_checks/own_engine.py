"""kvplan's own engine without tensors under a counted clock, and its rules where they are not vLLM's.

The play has vLLM's rules. The engine differs in these, which ``as_own_engine`` gives a replica for the check alone:

* Blocks are found by others in the step after the one that fills them, not in the same (scheduler.py of the engine).
* Of blocks with the same content only the first is found; those of the others are as if they were not full
  (``BlockPool.cache`` of the engine).
* It keeps the state where a prompt ends, and not where chunks do; models with states are not compared.
* A request is admitted where its first chunk fits and 1 % of the pool stays free beside those that run, not where all
  of its prompt fits (admission.py of the engine).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fleet_checks.playing import Outcome, Record
from fleet_checks.trace import prompt_token_ids
from kvplan.estimate.speed.queueing.instance import Sequence as Running
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.fleet.replicas.extents import LaneHolding
from kvplan.fleet.replicas.group import BlockGroup, BlockSequence
from kvplan.fleet.replicas.lanes import Lane
from kvplan.fleet.replicas.pool import BlockPool, Held
from kvplan.fleet.replicas.replica import Replica
from kvplan.fleet.replicas.setup import CacheGroup, GroupKind, PoolLayout
from kvplan.fleet.requests import FleetRequest, TokenRun
from kvplan_engine import SamplingParams
from kvplan_engine.config import EngineConfig
from kvplan_engine.engine import Engine

_WATERMARK = 0.01


class _OneCopy(Lane):
    """Content that is there is not found twice."""

    def add(self, holding: LaneHolding, runs: list[TokenRun], begin: int, end: int) -> None:
        there = self._coverage(runs, end)
        for first, last in there:
            if begin < min(first, end):
                super().add(holding, runs, begin, min(first, end))
            begin = max(begin, last)
        if begin < end:
            super().add(holding, runs, begin, end)


class _LatePool(BlockPool):
    """What a step fills is found in the next one."""

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool.layout, 1 << 30)
        groups = pool.layout.groups
        self.lanes = [_OneCopy(group, pool.layout.hit_tokens, self.queue, None) for group in groups]
        self._full_first = sorted(self.lanes, key=lambda lane: lane.kind != "full")
        self._late: dict[Held, int] = {}

    def grow(self, held: Held, num_computed: int, num_tokens: int) -> None:
        self._late.pop(held, None)
        for lane, holding in zip(self.lanes, held.holdings, strict=True):
            super()._fill(lane, held, holding, num_computed)
        super().grow(held, num_computed, num_tokens)
        self._late[held] = num_tokens

    def _fill(self, lane: Lane, held: Held, holding: LaneHolding, num_tokens: int) -> None:
        """Later."""

    def begin_step(self) -> None:
        for held in list(self._late):
            self._fill_late(held)
        super().begin_step()

    def _fill_late(self, held: Held) -> None:
        num_tokens = self._late.pop(held, 0)
        for lane, holding in zip(self.lanes, held.holdings, strict=True):
            super()._fill(lane, held, holding, num_tokens)

    def release(self, held: Held, num_tokens: int, num_taken: int, *, may_be_found: bool) -> None:
        self._fill_late(held)
        super().release(held, num_tokens, num_taken, may_be_found=True)


class _OwnGroup(BlockGroup):
    def has_room(self, rules: SchedulingRules, sequence: Running, num_new: int) -> bool:
        assert isinstance(sequence, BlockSequence) and sequence.match is not None
        kept = int(self.pool.num_blocks * _WATERMARK) if self.num_running else 0
        begun = sequence.found
        self.pool.queue.num_free -= kept
        fits = self.pool.is_room(sequence.held, sequence.match, begun, begun + num_new, begun + num_new)
        self.pool.queue.num_free += kept
        return fits


def as_own_engine(replica: Replica) -> None:
    """Give ``replica``, which has done nothing yet, the engine's rules."""
    (engine,), (group,) = replica._engines, replica._groups
    own = _OwnGroup(_LatePool(group.pool), replica.setup.rules)
    engine.block_groups[:] = engine._groups[:] = replica._groups[:] = [own]


def engine_cases(longest: int) -> Iterator[tuple[str, EngineConfig]]:
    """Full attention under three budgets with pools of two sizes, and windows with a pool that evicts nothing."""
    for budget, seats in ((128, 16), (512, 64), (2048, 64)):
        for mebibytes in (900, 1600):
            yield "full attention", _config("smollm2-135m", longest, seats, budget, mebibytes)
    yield "windows", _config("gemma-3-1b", longest, 32, 256, 16_000)


def _config(model: str, longest: int, seats: int, budget: int, mebibytes: int) -> EngineConfig:
    return EngineConfig(
        model=model,
        load_format="none",
        device="cpu",
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        max_model_len=longest + 8,
        block_size=16,
        device_memory=mebibytes * 2**20,
    )


def layout_of(engine: Engine) -> PoolLayout:
    """The engine's groups as cache groups: a bundle of several blocks is a block of as many groups."""
    groups = []
    for group in engine.scheduler.pool.layout.groups:
        kind: GroupKind = "full" if group.kept.kind == "full" else "sliding"
        assert group.kept.kind in ("full", "window"), "its states are kept where prompts end, vLLM's where blocks do"
        groups.append(CacheGroup(kind, engine.scheduler.pool.block_size, group.kept.tokens, group.width))
    return PoolLayout(tuple(groups), engine.scheduler.pool.num_blocks, retention_interval=None)


def run_engine(requests: Sequence[FleetRequest], config: EngineConfig) -> tuple[Record, PoolLayout]:
    """Return what the engine did with ``requests``, and its pool. ``config`` says load_format none."""
    record, coming, now = Record(), list(reversed(requests)), 0
    with Engine(config) as engine:
        vocabulary = engine.model.config.vocab_size
        layout = layout_of(engine)
        going: dict[int, Any] = {}
        first: dict[int, int] = {}
        while coming or engine.has_unfinished_requests():
            while coming and coming[-1].sent <= now:
                one = coming.pop()
                params = SamplingParams(max_tokens=one.num_output_tokens, ignore_eos=True)
                tokens = prompt_token_ids(one, vocabulary)
                going[one.number] = engine.add_request(str(one.number), tokens, params)
            if not engine.has_unfinished_requests():
                now = max(now, int(coming[-1].sent))
                continue
            outputs = engine.step()
            now += 1
            stats = engine.stats
            record.steps.append((stats.num_scheduled_tokens, stats.num_running, stats.num_waiting))
            for output in outputs:
                number = int(output.request_id)
                first.setdefault(number, now)
                if output.finish_reason is not None:
                    request = going[number]
                    record.outcomes[number] = Outcome(
                        request.num_cached_tokens, first[number], now, request.num_preemptions
                    )
    return record, layout
