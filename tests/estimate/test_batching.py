"""Continuous batching on lengths alone: steps simulated in one go equal those simulated singly; prefixes; figures."""

from __future__ import annotations

import random

import pytest

from kvplan.estimate.speed import batching
from kvplan.estimate.speed.batching import simulate_requests
from kvplan.estimate.speed.simulated_figures import simulated_figures
from kvplan.estimate.speed.simulation import BatchLimits, Simulation
from kvplan.sweeps.worker.metrics import RequestTrace, serving_figures
from kvplan.workload.requests import RequestSpec


class Clock:
    """Steps whose length depends on everything a step is told."""

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        load = num_tokens + 3 * num_sequences + 5 * num_sampled + 0.01 * num_kv_tokens + 0.001 * num_pairs
        return 0.01 + 1e-4 * load


def random_simulation(seed: int, prefixes: bool = False) -> Simulation:
    rng = random.Random(seed)
    block_size = rng.choice([1, 4, 16])
    needed = -(-64 // block_size)
    limits = BatchLimits(
        rng.choice([1, 3, 8, 20]), rng.choice([4, 8, 24, 64]), block_size, rng.randint(needed, 4 * needed + 2)
    )
    arrivals = sorted(rng.choice([0.0, rng.uniform(0, 2)]) for _ in range(rng.randint(1, 30)))
    requests = [
        RequestSpec(index, rng.randint(30, 48), rng.randint(1, 16), seconds, index % 3, 24 if prefixes else 0)
        for index, seconds in enumerate(arrivals)
    ]
    return simulate_requests(requests, limits, Clock(), max_concurrency=rng.choice([None, 3]))


@pytest.mark.parametrize("prefixes", [False, True])
def test_many_steps_at_once_equal_single_steps(monkeypatch: pytest.MonkeyPatch, prefixes: bool) -> None:
    at_once = [random_simulation(seed, prefixes) for seed in range(200)]
    monkeypatch.setattr(batching._SimulatedScheduler, "_decode_on", lambda self: False)
    one_by_one = [random_simulation(seed, prefixes) for seed in range(200)]
    for fast, slow in zip(at_once, one_by_one, strict=True):
        assert fast.loads == slow.loads
        assert fast.requests == slow.requests
        assert (fast.status, fast.max_running, fast.num_preemptions) == (
            slow.status,
            slow.max_running,
            slow.num_preemptions,
        )
    assert {simulated.status for simulated in at_once} == {"ok", "queued", "preempted"}


@pytest.mark.parametrize("seed", range(20))
def test_every_token_comes_once_and_every_block_returns(seed: int) -> None:
    for prefixes in (False, True):
        simulated = random_simulation(seed, prefixes)
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
    simulated = simulate_requests(requests, limits, Clock())
    assert simulated.loads.num_tokens == [100, 36, 36]
    assert simulated.loads.num_kv_tokens == [100, 100, 100]


def test_a_shared_prefix_is_held_once() -> None:
    """Three sequences of 7 blocks, 4 of them in common: 4 + 3 x 3 blocks hold them, 21 are not needed."""
    requests = [RequestSpec(0, 100, 12, 0.0, 0, 64), *(RequestSpec(index, 100, 8, 0.03, 0, 64) for index in (1, 2))]
    for num_blocks, num_running in ((13, 3), (12, 2)):
        simulated = simulate_requests(requests, BatchLimits(4, 256, 16, num_blocks), Clock())
        assert (simulated.max_running, simulated.num_preemptions) == (num_running, 0)
