"""Results as observations that the coefficients are fitted to: a load simulated, a batch as it is.

A benchmark tells no steps. Which steps a load took is simulated with the speeds believed so far, and its figures (the
whole duration, mean TTFT, mean TPOT) are weighted sums over these steps: that is what the fit compares.

What one rank of a deployment does in each step, in the coefficients that plans use too.

``estimate.speed.steps.measured_clock`` and ``rank_step`` define both; here the steps of a whole load stand in arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from kvplan.calibrate.observations import Loads, figure_rows, loads_of
from kvplan.calibrate.results.deployment import Deployed
from kvplan.calibrate.results.outcome import BatchResult, LoadResult
from kvplan.estimate.speed.simulation.batching import simulate_requests
from kvplan.estimate.speed.simulation.figures import SimulatedFigures, simulated_figures
from kvplan.estimate.speed.simulation.interface import Simulation
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.collectives import collective_cost
from kvplan.estimate.speed.steps.measured_clock import MeasuredClock, link_efficiency, rank_step
from kvplan.estimate.speed.steps.rank_step import KernelSpeed, RankStep, step_seconds
from kvplan.estimate.speed.steps.step_time import Speed, padded_rows

_CONTEXT: Final = 1.0
"""K and V are counted by the token."""


@dataclass(frozen=True, slots=True, eq=False)
class RankObservation:
    """The steps of one result, on one rank: a ``fit.Observed``. figure_weights [F, N] x steps = figure_seconds [F].

    is_forward_only: the model's forward alone was timed.
    """

    of: Deployed
    steps: RankStep
    exchange_seconds: np.ndarray
    figure_weights: np.ndarray
    figure_seconds: np.ndarray
    is_forward_only: bool = False
    has_steps: bool = False
    group_starts: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    group_seconds: np.ndarray = field(default_factory=lambda: np.empty(0))

    @property
    def num_layers(self) -> float:
        return self.of.work.num_layers

    def seconds(self, speed: Speed) -> np.ndarray:
        """[N]."""
        seconds = rank_seconds(self.of, self.steps, speed, is_forward_only=self.is_forward_only)
        return seconds + self.exchange_seconds

    @staticmethod
    def make(
        of: Deployed, loads: Loads, weights: np.ndarray, seconds: np.ndarray, *, is_forward_only: bool = False
    ) -> RankObservation:
        """The work of ``loads``, looked at once for all speeds that a fit tries."""
        exchanges = exchange_seconds(of, loads.tokens)
        return RankObservation(of, rank_steps(of, loads), exchanges, weights, seconds, is_forward_only)


@dataclass(frozen=True, slots=True)
class ServedResult:
    """A load and what served it."""

    result: LoadResult
    of: Deployed

    @property
    def arrives_over_time(self) -> bool:
        return any(request.arrival_seconds > 0 for request in self.result.requests)

    def simulate(self, speed: Speed) -> Simulation:
        clock = rank_clock(self.of, speed)
        return simulate_requests(
            self.result.requests, self.of.limits, clock, max_concurrency=self.result.max_concurrency
        )

    def predicted(self, speed: Speed) -> SimulatedFigures:
        """What the coefficients say of it, from lengths and limits alone."""
        return simulated_figures(self.simulate(speed))

    def observe(self, speed: Speed) -> RankObservation:
        """The steps that it took if ``speed`` is right. An open loop lasts as long as its arrivals say."""
        simulated, figures = self.simulate(speed), self.result.figures
        duration = None if self.arrives_over_time else figures.duration
        weights, seconds = figure_rows(simulated, duration, figures.mean_ttft, figures.mean_tpot)
        return RankObservation.make(self.of, loads_of(simulated), weights, seconds)


@dataclass(frozen=True, slots=True)
class TimedBatch:
    """A batch of exact size and what ran it."""

    result: BatchResult
    of: Deployed

    def observe(self, speed: Speed) -> RankObservation:
        """One step without its head, whatever ``speed`` is."""
        sizes = self.result.requests
        loads = Loads(
            tokens=_one(sum(new for new, _ in sizes)),
            sequences=_one(len(sizes)),
            sampled=_one(0),
            kv_tokens=_one(sum(held for _, held in sizes)),
            pairs=_one(sum(new * (held - new + (new + 1) / 2) for new, held in sizes)),
        )
        return RankObservation.make(self.of, loads, np.ones((1, 1)), _one(self.result.seconds), is_forward_only=True)


def _one(value: float) -> np.ndarray:
    return np.asarray([value], dtype=np.float64)


def rank_clock(of: Deployed, speed: Speed) -> MeasuredClock:
    """The clock of a simulation."""
    device = DeviceSpeed(_kernels(of, speed), "calibrated", of.device.dtype, "", {})
    return MeasuredClock(of.work, of.gpu, of.kv_bytes_per_token, device, _CONTEXT)


def rank_steps(of: Deployed, loads: Loads) -> RankStep:
    """Every step of ``loads``: a RankStep of arrays [N]."""
    row_step = 1.0 if of.kernels is None else of.kernels.base.row_step
    columns = (loads.tokens, loads.sequences, loads.sampled, loads.kv_tokens, loads.pairs)
    steps = [
        rank_step(
            of.work,
            tokens=tokens,
            rows=padded_rows(tokens, row_step),
            sequences=sequences,
            sampled=sampled,
            kv_bytes=kv_tokens * of.kv_bytes_per_token,
            pairs=pairs,
            kv_tokens=kv_tokens,
            expert_tokens=tokens,
        )
        for tokens, sequences, sampled, kv_tokens, pairs in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return RankStep(**{name: np.array([getattr(step, name) for step in steps]) for name in RankStep._fields})


def rank_seconds(of: Deployed, steps: RankStep, speed: Speed, *, is_forward_only: bool) -> np.ndarray:
    """Seconds of every step [N], without what ranks send each other.

    is_forward_only: without what a step and its sequences cost the host.
    """
    if is_forward_only:
        speed = replace(speed, step_seconds=0.0, sequence_seconds=0.0)
    return np.asarray(step_seconds(_kernels(of, speed), steps))


def exchange_seconds(of: Deployed, tokens: np.ndarray) -> np.ndarray:
    """What the ranks send each other in each step [N]: not fitted, since a load hardly tells it apart."""
    cost = collective_cost(of.work, of.gpu, link_efficiency(_kernels(of, _ANY_SPEED), of.work, of.gpu))
    return cost.fixed_seconds + tokens * (cost.seconds_per_row + cost.seconds_per_met)


_ANY_SPEED: Final = Speed(0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0)


def _kernels(of: Deployed, speed: Speed) -> KernelSpeed:
    """``speed`` with what is believed of mixtures, latent attention and links."""
    return KernelSpeed(speed) if of.kernels is None else replace(of.kernels, base=speed)
