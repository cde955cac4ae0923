"""The play by stretches of blocks against vLLM's rules one block and one step at a time."""

from __future__ import annotations

import random

import pytest
from block_by_block import SlowReplica
from step_clocks import EvenClock

from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.fleet.replicas.fleet import Fleet
from kvplan.fleet.replicas.kept import resumed_at
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.replicas.setup import CacheGroup, PoolLayout, ReplicaSetup
from kvplan.fleet.requests import FleetRequest, TokenRun
from kvplan.fleet.routers.in_turn import RoundRobin


def shared_prompts(seed: int, count: int, *, mean_gap: float = 6.0) -> list[FleetRequest]:
    """Prompts that branch: each begins like an earlier one, as far as a random place, and goes on by itself."""
    rng, now, key, requests = random.Random(seed), 0.0, 0, []
    paths: list[list[TokenRun]] = [[]]
    for number in range(count):
        path = rng.choice(paths)
        runs = list(path[: rng.randint(0, len(path))])
        end = runs[-1].end if runs else 0
        for _ in range(rng.randint(1, 5)):
            key, end = key + 1, end + rng.choice([8, 16, 24])
            runs.append(TokenRun(key, end))
        paths.append(runs)
        prompt = max(end - rng.randint(0, 7), 1)
        cut = [run for run, before in zip(runs, [0, *(each.end for each in runs)], strict=False) if before < prompt]
        cut[-1] = TokenRun(cut[-1].key, prompt)
        now += rng.randint(0, round(2 * mean_gap))
        requests.append(FleetRequest(number, now, prompt, rng.randint(1, 40), tuple(cut)))
    return requests


def played(requests: list[FleetRequest], layout: PoolLayout, seats: int, budget: int) -> tuple[Fleet, list[Seen]]:
    fleet = Fleet(ReplicaSetup(SchedulingRules(seats, budget, 1e9), EvenClock(), layout), 1, RoundRobin())
    return fleet, fleet.play(requests).seen


def longest_blocks(groups: tuple[CacheGroup, ...], requests: list[FleetRequest]) -> int:
    """Enough for the longest request alone, all of whose blocks are kept."""
    longest = max(each.num_prompt_tokens + each.num_output_tokens for each in requests)
    return sum(group.count * (longest // group.block_size + 2) for group in groups if group.kind != "state") + sum(
        3 * group.count for group in groups if group.kind == "state"
    )


FULL = (CacheGroup("full", 8),)
WINDOWED = (CacheGroup("full", 8), CacheGroup("sliding", 8, 20, 2))
SHORT_WINDOWS = (CacheGroup("full", 16), CacheGroup("sliding", 4, 6))
CHUNKED = (CacheGroup("full", 8), CacheGroup("chunked", 8, 32))
WITH_STATES = (CacheGroup("full", 16), CacheGroup("state", 16, None, 3))


def _outcome(seen: Seen) -> tuple[float, float, int, int]:
    return seen.first, seen.last, seen.num_hit_tokens, seen.num_preemptions


SMALL, TIGHT, TIGHTER, WIDE = (8, 64, 400), (4, 40, 60), (16, 40, 36), (16, 4096, 48)
"""Seats, token budget, blocks."""
SETTINGS = [
    (groups, interval, exports, setting)
    for groups in (FULL, WINDOWED, SHORT_WINDOWS, CHUNKED, WITH_STATES)
    for interval in ((0, None) if groups in (FULL, CHUNKED) else (0, None, 32))
    for exports in ((False, True) if groups is WITH_STATES else (False,))
    for setting in (SMALL, TIGHT, TIGHTER, WIDE)
]
"""vLLM refuses an interval where nothing is kept by it."""


def prompt_of(number: int, *lengths: tuple[int, int]) -> FleetRequest:
    """A prompt of (key, tokens up to which it is alike), sent long after the one before, with an answer of a token."""
    return FleetRequest(number, 100.0 * number, lengths[-1][1], 1, tuple(TokenRun(key, end) for key, end in lengths))


@pytest.mark.parametrize("groups", [(FULL[0], CacheGroup("sliding", 8, 9)), (FULL[0], CacheGroup("state", 8))])
@pytest.mark.parametrize(
    ("interval", "found"),
    [
        (None, [0, 56, 32, 32]),  # wherever a hit can end
        (0, [0, 56, 0, 32]),  # at the prompt's last place; where the third went on differently, for the fourth
        (16, [0, 56, 32, 32]),  # and where each 16 tokens end
        (24, [0, 56, 24, 32]),  # each 24
    ],
)
def test_a_window_and_a_state_are_kept_at_three_places(
    groups: tuple[CacheGroup, ...], interval: int | None, found: list[int]
) -> None:
    requests = [
        prompt_of(0, (1, 32), (2, 64)),
        prompt_of(1, (1, 32), (2, 64)),
        prompt_of(2, (1, 32), (3, 64)),
        prompt_of(3, (1, 32), (4, 64)),
    ]
    _, seen = played(requests, PoolLayout(groups, 400, retention_interval=interval), 4, 8)
    assert [each.num_hit_tokens for each in seen] == found


def test_a_drafter_has_both_places_kept_one_block_earlier() -> None:
    assert resumed_at(64, 16, drops_a_block=False) == (48,)
    assert resumed_at(64, 16, drops_a_block=True) == (32, 48)
    assert resumed_at(70, 16, drops_a_block=True) == (48,)


@pytest.mark.parametrize("seed", [2, 12, 14])
@pytest.mark.parametrize(("groups", "interval", "exports", "setting"), SETTINGS)
def test_every_request_sees_what_it_sees_block_by_block(
    groups: tuple[CacheGroup, ...], interval: int | None, exports: bool, setting: tuple[int, int, int], seed: int
) -> None:
    seats, budget, num_blocks = setting
    requests = shared_prompts(seed, 60)
    least = max(num_blocks, longest_blocks(groups, requests))
    layout = PoolLayout(groups, least, retention_interval=interval, exports_states=exports)
    slow = SlowReplica(layout, seats, budget)
    expected = [(each.first, each.last, each.hit, each.num_preemptions) for each in slow.play(requests)]
    fleet, seen = played(requests, layout, seats, budget)
    assert [_outcome(each) for each in seen] == expected
    assert fleet.replicas[0].kv_usage == 0.0
    assert sum(each.num_hit_tokens for each in seen) > 0


@pytest.mark.parametrize(
    ("prompt", "budget", "cut_steps", "exported_steps"),
    [
        (100, 512, 2, 1),  # 0-96, 96-100
        (100, 40, 4, 3),  # 0-32, 32-64, 64-96, 96-100
        (96, 512, 2, 1),  # 0-80, 80-96: the last token is always computed
        (20, 10, 3, 3),  # 0-10, 10-16, 16-20: no kernel writes a state on its way from within a block
        (16, 512, 1, 1),
    ],
)
def test_a_prompt_is_not_cut_where_kernels_write_its_state(
    prompt: int, budget: int, cut_steps: int, exported_steps: int
) -> None:
    """Scheduler._mamba_block_aligned_split and is_mamba_prefill_checkpoint_valid of vLLM 0.33.0."""
    runs = (TokenRun(1, prompt),)
    requests = [FleetRequest(0, 0.0, prompt, 1, runs), FleetRequest(1, 50.0, prompt, 1, runs)]
    found = []
    for exports in (False, True):
        layout = PoolLayout((FULL[0], CacheGroup("state", 16)), 100, exports_states=exports)
        _, (first, second) = played(requests, layout, 4, budget)
        found.append((first.first - first.sent, second.num_hit_tokens))
    kept = (prompt - 1) // 16 * 16
    assert found == [(cut_steps, kept), (exported_steps, kept)]
