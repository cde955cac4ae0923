"""Scheduler, pool, prefix cache, swap space and tiers under a storm: a hypothesis state machine of
100,000 steps (`make exhaustive`), of which CI takes a fifth.

Requests come, fork, are searched with beams, share prefixes, grow, are preempted, swapped, evicted, restored from
tiers (some of whose files are bad) and aborted at random. After every step of the scheduler every invariant is checked,
and every slot of KV that the step reads (see ``scheduler_harness``).
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from scheduler_harness import SchedulerHarness

from kvplan_engine.blocks.layout import KvGroup, KvLayout, uniform_layout

NUM_STEPS, NUM_EXAMPLES = 20_000, 120
EXHAUSTIVE_TIMES = 5
MOVES_PER_EXAMPLE = 60


@st.composite
def harnesses(draw: st.DrawFn, groups: st.SearchStrategy[tuple[KvGroup, ...]]) -> SchedulerHarness:
    """Settings of all kinds over blocks for ``groups``, with room for one sequence and little more."""
    layout = KvLayout(1, draw(st.sampled_from([1, 2, 3, 4])), draw(groups))
    max_model_len = draw(st.sampled_from([8, 14, 20]))
    max_num_batched_tokens = draw(st.one_of(st.integers(1, 9), st.integers(1, 21)))
    longest = layout.blocks_for(max_model_len, max_num_batched_tokens)
    is_contiguous = draw(st.integers(0, 9)) == 0
    width = sum(layout.widths)
    more = draw(st.integers(0, 6)) * width * (3 if is_contiguous else 1)
    return SchedulerHarness(
        num_blocks=longest + more,
        layout=layout,
        block_size=layout.block_size,
        max_num_seqs=draw(st.sampled_from([2, 4, 6])),
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        prefix_caching=not is_contiguous and draw(st.integers(0, 3)) > 0,
        preemption_mode=draw(st.sampled_from(["recompute", "swap", "auto"])),
        num_swap_slots=draw(st.sampled_from([0, 3, 8, 16])) * width,
        num_tier_slots=draw(st.sampled_from([0, 1, 3, 8])) * width,
        num_disk_blocks=draw(st.sampled_from([0, 2, 6, 20])),
        damage_every=draw(st.sampled_from([0, 3, 7])),
        seed=draw(st.integers(0, 1 << 16)),
        scheduling=draw(st.sampled_from(["continuous", "continuous", "static"])),
        kv_reservation="contiguous" if is_contiguous else "paged",
    )


class Prompt(NamedTuple):
    """Tokens as they are drawn, or repeated until they fill ``num_budgets`` steps and ``more``."""

    tokens: list[int]
    num_budgets: int
    more: int

    def cut(self, harness: SchedulerHarness) -> list[int]:
        longest = harness.scheduler.max_model_len - 1
        if not self.num_budgets:
            return self.tokens[:longest]
        number = self.num_budgets * harness.config.max_num_batched_tokens + self.more
        return (self.tokens * longest)[: min(max(number, 1), longest)]


def prompts() -> st.SearchStrategy[Prompt]:
    tokens = st.lists(st.integers(0, 1), min_size=1, max_size=19)
    return st.builds(Prompt, tokens, st.sampled_from([0, 0, 1, 2, 3]), st.integers(-1, 1))


class StormMachine(RuleBasedStateMachine):
    """num_requests: those that came; those that ended are num_aborted and num_answered."""

    num_steps: ClassVar[int] = 0
    num_requests: ClassVar[int] = 0
    num_aborted: ClassVar[int] = 0
    num_answered: ClassVar[int] = 0
    seen: ClassVar[dict[str, int]] = {}

    @initialize(harness=harnesses(st.just(uniform_layout(1).groups)))
    def start(self, harness: SchedulerHarness) -> None:
        self.harness = harness
        self.is_contiguous = harness.config.reserves_all

    @rule(prompt=prompts(), n=st.integers(1, 4), more=st.integers(1, 14))
    def add(self, prompt: Prompt, n: int, more: int) -> None:
        scheduler = self.harness.scheduler
        n = 1 if self.is_contiguous else min(n, scheduler.config.max_num_seqs)
        self.harness.add(prompt.cut(self.harness), n=n, max_tokens=more)
        type(self).num_requests += 1

    @precondition(lambda self: not self.is_contiguous)
    @rule(prompt=prompts(), width=st.integers(1, 3), more=st.integers(1, 9))
    def search(self, prompt: Prompt, width: int, more: int) -> None:
        self.harness.add_beams(prompt.cut(self.harness), beam_width=width, max_tokens=more)
        type(self).num_requests += 1

    @rule(count=st.integers(1, 20))
    def run(self, count: int) -> None:
        for _ in range(count):
            self.harness.step()
        type(self).num_steps += count

    @precondition(lambda self: self.harness.scheduler.has_unfinished)
    @rule(is_moved=st.booleans(), is_committed=st.booleans(), number=st.integers(1, 6))
    def fail(self, is_moved: bool, is_committed: bool, number: int) -> None:
        if number < 6:  # it empties the pool: more often, and hardly anything would be preempted
            return
        self.harness.fail_step(is_moved=is_moved, is_committed=is_committed)
        type(self).num_steps += 1

    @precondition(lambda self: self.harness.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.harness.abort(data.draw(st.sampled_from(sorted(self.harness.requests))))
        type(self).num_aborted += 1
        type(self).num_steps += 1

    @precondition(lambda self: len(self.harness.requests) > 2)
    @rule()
    def abort_all(self) -> None:
        for request_id in sorted(self.harness.requests):
            self.harness.abort(request_id)
            type(self).num_aborted += 1
        self.harness.scheduler.check()
        assert self.harness.pool.num_free_blocks == self.harness.pool.num_blocks
        assert self.harness.swap.num_free_slots == self.harness.swap.num_slots
        type(self).num_steps += 1

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        harness, scheduler = self.harness, self.harness.scheduler
        while scheduler.has_unfinished:
            harness.step()
            type(self).num_steps += 1
        assert harness.pool.num_free_blocks == harness.pool.num_blocks
        assert not harness.requests, "a request is held though nothing is unfinished"
        type(self).num_answered += len(harness.answered)
        for name, count in (
            ("preempted", scheduler.num_preemptions),
            ("swapped", scheduler.num_swaps),
            ("recomputed", scheduler.num_recomputed_tokens),
            ("evicted", harness.pool.num_evictions),
            ("found in the pool", scheduler.prefix_cache.num_hit_tokens),
            ("restored from host memory", harness.tiers.num_host_hit_tokens),
            ("restored from disk", harness.tiers.num_disk_hit_tokens),
            ("blocked", scheduler.num_blocked_admissions),
        ):
            self.seen[name] = self.seen.get(name, 0) + count


@pytest.mark.slow
def test_a_storm_breaks_no_invariant(exhaustive: bool) -> None:
    times = EXHAUSTIVE_TIMES if exhaustive else 1
    run_state_machine_as_test(
        StormMachine,
        settings=settings(
            max_examples=times * NUM_EXAMPLES,
            stateful_step_count=MOVES_PER_EXAMPLE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        ),
    )
    print(StormMachine.num_steps, StormMachine.num_requests, StormMachine.seen)
    assert StormMachine.num_requests == StormMachine.num_answered + StormMachine.num_aborted
    assert StormMachine.num_steps >= times * NUM_STEPS
    assert all(count > 20 * times for count in StormMachine.seen.values()), StormMachine.seen
