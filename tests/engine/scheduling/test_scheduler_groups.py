"""Scheduling over groups of layers: chunks that end where a state is kept, and a storm."""

from __future__ import annotations

import sys
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test
from scheduler_harness import SchedulerHarness
from test_scheduler_machine import MOVES_PER_EXAMPLE, StormMachine, harnesses

from kvplan_engine.blocks.layout import KvGroup, KvLayout
from kvplan_engine.description.mixers import FULL, STATE, Kept


def harness(*groups: tuple[Kept, int], num_blocks: int = 100, **settings: object) -> SchedulerHarness:
    """Blocks of 4 tokens for groups of (what they keep, width)."""
    layout = KvLayout(1, 4, tuple(KvGroup(kept, width, 1, {}) for kept, width in groups))
    defaults: dict[str, object] = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 40}
    return SchedulerHarness(num_blocks=num_blocks, block_size=4, layout=layout, **(defaults | settings))  # type: ignore[arg-type]


def steps_of(h: SchedulerHarness) -> list[list[int]]:
    """The tokens that each sequence of each step computes, until everything is answered."""
    steps = []
    while h.scheduler.has_unfinished:
        steps.append([item.num_new_tokens for item in h.step().scheduled])
    return steps


def test_a_prompt_ends_a_chunk_where_its_state_is_kept_and_an_equal_one_starts_there() -> None:
    h = harness((FULL, 1), (STATE, 2))
    prompt = [1] * 11
    h.add(prompt, max_tokens=2)
    assert steps_of(h) == [[8], [3], [1]]
    h.add(prompt, max_tokens=2)
    assert steps_of(h) == [[3], [1]]
    assert h.scheduler.prefix_cache.num_hit_tokens == 8
    h.add([*prompt, 0, 1, 0], max_tokens=1)  # a longer one starts there as well, and keeps its own
    assert steps_of(h) == [[4], [2]]


@pytest.mark.parametrize("groups", [[(FULL, 1)], [(FULL, 1), (Kept("window", 5), 2)]])
def test_without_states_a_prompt_is_one_chunk(groups: list[tuple[Kept, int]]) -> None:
    h = harness(*groups)
    h.add([1] * 11, max_tokens=2)
    assert steps_of(h) == [[11], [1]]


def test_without_a_prefix_cache_no_state_is_kept() -> None:
    h = harness((FULL, 1), (STATE, 2), prefix_caching=False)
    h.add([1] * 11, max_tokens=2)
    assert steps_of(h) == [[11], [1]]


def test_a_prompt_that_ends_with_a_block_keeps_the_state_one_block_before() -> None:
    h = harness((FULL, 1), (STATE, 2))
    h.add([1] * 8, max_tokens=1)
    assert steps_of(h) == [[4], [4]]
    h.add([1] * 8, max_tokens=1)
    assert steps_of(h) == [[4]]


def test_samples_of_one_prompt_have_states_of_their_own() -> None:
    h = harness((FULL, 1), (STATE, 2))
    request = h.add([1] * 6, n=3, max_tokens=4)
    h.step()
    h.step()
    h.step()  # each sample has written its state
    states = {sequence.table.groups[1].bundles[0] for sequence in request.sequences}
    assert len(states) == 3
    assert len({sequence.table.groups[0].bundles[0] for sequence in request.sequences}) == 1
    steps_of(h)
    assert h.pool.num_free_blocks == 100


def test_a_sequence_beyond_its_window_holds_no_more_blocks() -> None:
    h = harness((Kept("window", 6), 1), max_num_batched_tokens=4)
    h.add([1] * 4, max_tokens=30)
    used = []
    while h.scheduler.has_unfinished:
        h.step()
        used.append(h.pool.num_used_blocks)
    assert max(used) == h.pool.layout.blocks_for(40) == 3
    assert h.scheduler.num_preemptions == 0


def test_a_pool_for_one_sequence_serves_any_number_one_after_another() -> None:
    kept = [(FULL, 1), (Kept("window", 5), 2), (STATE, 3)]
    h = harness(*kept)
    num_blocks = h.pool.layout.blocks_for(40, in_flight=16)
    h = harness(*kept, num_blocks=num_blocks)
    for number in range(5):
        h.add([number] * (7 + 5 * number), max_tokens=20)
    steps_of(h)
    assert h.scheduler.num_preemptions > 0
    assert h.pool.num_free_blocks == num_blocks


def test_contiguous_reservation_holds_a_whole_life_from_the_start() -> None:
    h = harness((FULL, 1), (Kept("window", 6), 2), (STATE, 3), kv_reservation="contiguous", prefix_caching=False)
    h.add([1] * 5, max_tokens=30)
    whole = h.pool.layout.blocks_for(40, in_flight=16)
    while h.scheduler.has_unfinished:
        h.step()
        assert h.pool.num_used_blocks in (0, whole)
    assert whole == 10 + 2 * 6 + 3


NUM_EXAMPLES = 50

WINDOW, SHORT, CHUNK = Kept("window", 5), Kept("window", 1), Kept("chunk", 4)
KINDS: list[list[Kept]] = [
    [WINDOW],
    [FULL, WINDOW],
    [FULL, SHORT, Kept("window", 9)],
    [FULL, CHUNK],
    [FULL, STATE],
    [FULL, WINDOW, STATE],
    [CHUNK, STATE],
    [STATE],
]


@st.composite
def groups(draw: st.DrawFn) -> tuple[KvGroup, ...]:
    """Groups of one model. In the simplest each bundle is one block."""
    widths = st.sampled_from([1, 2, 3])
    return tuple(KvGroup(kept, draw(widths), 1, {}) for kept in draw(st.sampled_from(KINDS)))


class GroupStorm(StormMachine):
    num_steps: ClassVar[int] = 0
    num_requests: ClassVar[int] = 0
    num_aborted: ClassVar[int] = 0
    num_answered: ClassVar[int] = 0
    seen: ClassVar[dict[str, int]] = {}

    @initialize(harness=harnesses(groups()))
    def start(self, harness: SchedulerHarness) -> None:
        self.harness = harness
        self.is_contiguous = harness.config.reserves_all


def run_storm(num_examples: int) -> None:
    run_state_machine_as_test(
        GroupStorm,
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=MOVES_PER_EXAMPLE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        ),
    )
    print(GroupStorm.num_steps, GroupStorm.num_requests, GroupStorm.seen)
    assert GroupStorm.num_requests == GroupStorm.num_answered + GroupStorm.num_aborted


def test_a_storm_over_groups_breaks_no_invariant() -> None:
    run_storm(NUM_EXAMPLES)
    assert GroupStorm.num_steps >= 5_000
    assert all(count > 10 for count in GroupStorm.seen.values()), GroupStorm.seen


if __name__ == "__main__":
    run_storm(int(sys.argv[1]))
