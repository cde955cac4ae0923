"""The storm of ``test_scheduler_machine`` over groups of layers: windows, chunks, states, bundles of several blocks.

In CI some thousand steps; some 100,000 with 600 examples, as PYTHONPATH=tests/engine python THIS_FILE 600
"""

from __future__ import annotations

import sys
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test
from scheduler_harness import SchedulerHarness
from test_scheduler_machine import MOVES_PER_EXAMPLE, StormMachine, harnesses

from kvplan_engine.blocks.layout import KvGroup
from kvplan_engine.description.mixers import FULL, STATE, Kept

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
