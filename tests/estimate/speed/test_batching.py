"""Continuous batching on lengths alone: steps simulated in one go equal those simulated singly; prefixes; figures."""

from __future__ import annotations

import random

import pytest
from step_clocks import FullClock

from kvplan.estimate.kv_groups import FULL, STATE, Kept, KvGroup, blocks_for
from kvplan.estimate.speed.simulation import batching
from kvplan.estimate.speed.simulation.batching import simulate_requests
from kvplan.estimate.speed.simulation.figures import simulated_figures
from kvplan.estimate.speed.simulation.interface import UNIFORM, BatchLimits, Simulation
from kvplan.sweeps.worker.metrics import RequestTrace, serving_figures
from kvplan.workload.requests import RequestSpec

LAYOUTS = {
    "uniform": UNIFORM,
    "window": (KvGroup(Kept("window", 21), 1, 0),),
    "full and windows": (KvGroup(FULL, 1, 0), KvGroup(Kept("window", 9), 3, 0), KvGroup(Kept("window", 30), 1, 0)),
    "full and chunks": (KvGroup(FULL, 2, 0), KvGroup(Kept("chunk", 20), 3, 0)),
    "full and states": (KvGroup(FULL, 1, 0), KvGroup(STATE, 5, 0)),
    "states": (KvGroup(STATE, 1, 0),),
}


def random_simulation(seed: int, prefixes: bool = False, layout: str = "uniform") -> Simulation:
    rng = random.Random(seed)
    block_size, groups = rng.choice([1, 4, 16]), LAYOUTS[layout]
    max_num_seqs, max_num_batched_tokens = rng.choice([1, 3, 8, 20]), rng.choice([4, 8, 24, 64])
    needed = blocks_for(groups, block_size, 64, max_num_batched_tokens)
    num_blocks = rng.randint(needed, 4 * needed + 2)
    limits = BatchLimits(max_num_seqs, max_num_batched_tokens, block_size, num_blocks, groups)
    arrivals = sorted(rng.choice([0.0, rng.uniform(0, 2)]) for _ in range(rng.randint(1, 30)))
    requests = [
        RequestSpec(index, rng.randint(30, 48), rng.randint(1, 16), seconds, index % 3, 24 if prefixes else 0)
        for index, seconds in enumerate(arrivals)
    ]
    return simulate_requests(requests, limits, FullClock(), max_concurrency=rng.choice([None, 3]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("prefixes", [False, True])
def test_many_steps_at_once_equal_single_steps(monkeypatch: pytest.MonkeyPatch, prefixes: bool, layout: str) -> None:
    number = 100 if layout == "uniform" else 40
    at_once = [random_simulation(seed, prefixes, layout) for seed in range(number)]
    monkeypatch.setattr(batching._SimulatedScheduler, "_decode_on", lambda self: False)
    one_by_one = [random_simulation(seed, prefixes, layout) for seed in range(number)]
    for fast, slow in zip(at_once, one_by_one, strict=True):
        assert fast.loads == slow.loads
        assert fast.requests == slow.requests
        assert (fast.status, fast.max_running, fast.num_preemptions, fast.max_used_blocks) == (
            slow.status,
            slow.max_running,
            slow.num_preemptions,
            slow.max_used_blocks,
        )
    # nothing grows beside states, so nobody loses them
    preempted = set() if layout == "states" else {"preempted"}
    assert {simulated.status for simulated in at_once} == {"ok", "queued", *preempted}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(10))
def test_every_token_comes_once(seed: int, layout: str) -> None:
    for prefixes in (False, True):
        simulated = random_simulation(seed, prefixes, layout)
        for request in simulated.requests:
            assert sum(stop - first for first, stop in request.token_steps) == request.num_output_tokens


def test_figures_are_those_of_the_sweep() -> None:
    """The same definitions as for measured traces (which are vLLM's)."""
    for seed in range(20):
        simulated = random_simulation(seed)
        ends = simulated.loads.end_seconds
        traces = [
            RequestTrace(
                str(index),
                request.num_prompt_tokens,
                request.arrival_seconds,
                [ends[step] for first, stop in request.token_steps for step in range(first, stop)],
                finished=True,
            )
            for index, request in enumerate(simulated.requests)
        ]
        measured, found = serving_figures(traces, simulated.seconds), simulated_figures(simulated)
        assert found.output_throughput == pytest.approx(measured["output_throughput"])
        for name in ("ttft", "tpot", "itl"):
            seconds, expected = getattr(found, f"median_{name}_seconds"), measured[f"median_{name}_ms"]
            assert (seconds is None) == (expected is None)
            if seconds is not None:
                assert 1000 * seconds == pytest.approx(expected)


def test_a_shared_prefix_is_computed_once() -> None:
    limits = BatchLimits(max_num_seqs=1, max_num_batched_tokens=256, block_size=16, num_blocks=64)
    requests = [RequestSpec(index, 100, 1, 0.0, 0, 64) for index in range(3)]
    simulated = simulate_requests(requests, limits, FullClock())
    assert simulated.loads.num_tokens == [100, 36, 36]
    assert simulated.loads.num_kv_tokens == [100, 100, 100]


def test_a_shared_prefix_is_held_once() -> None:
    """Three sequences of 7 blocks, 4 of them in common: 4 + 3 x 3 blocks hold them, 21 are not needed."""
    requests = [RequestSpec(0, 100, 12, 0.0, 0, 64), *(RequestSpec(index, 100, 8, 0.03, 0, 64) for index in (1, 2))]
    for num_blocks, num_running in ((13, 3), (12, 2)):
        simulated = simulate_requests(requests, BatchLimits(4, 256, 16, num_blocks), FullClock())
        assert (simulated.max_running, simulated.num_preemptions) == (num_running, 0)


def test_a_window_gives_back_what_lies_before_it() -> None:
    """A prompt of 64 tokens takes 4 blocks; its 65th token sees the last 20, in 2 of them, and needs one more."""
    groups = (KvGroup(Kept("window", 20), 1, 0),)
    simulated = simulate_requests([RequestSpec(0, 64, 1000)], BatchLimits(1, 64, 16, 4, groups), FullClock())
    assert (simulated.max_used_blocks, simulated.num_preemptions, simulated.was_blocked) == (4, 0, False)


def test_windows_that_shrink_let_others_in() -> None:
    """Prompts of 4 blocks. The first leaves 3 behind with its 65th token, and takes one; 4 of 6 are free then."""
    groups = (KvGroup(Kept("window", 2), 1, 0),)
    requests = [RequestSpec(index, 62, 20) for index in range(2)]
    simulated = simulate_requests(requests, BatchLimits(2, 62, 16, 6, groups), FullClock())
    assert (simulated.max_running, simulated.was_blocked, simulated.num_preemptions) == (2, True, 0)
    assert simulated.loads.num_tokens[:6] == [62, 1, 1, 1 + 61, 2, 2]


def test_a_prompts_state_is_left_behind_at_the_end_of_a_block() -> None:
    groups = (KvGroup(FULL, 1, 0), KvGroup(STATE, 5, 0))
    for caches, loads in ((True, [32, 9, 1]), (False, [41, 1])):
        limits = BatchLimits(1, 64, 16, 100, groups, caches_prefixes=caches)
        simulated = simulate_requests([RequestSpec(0, 41, 2)], limits, FullClock())
        assert simulated.loads.num_tokens == loads
        assert simulated.max_used_blocks == 3 + 5
