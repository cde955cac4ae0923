"""Results as observations that the coefficients are fitted to: a load simulated, a batch as it is.

A benchmark tells no steps. Which steps a load took is simulated with the speeds believed so far, and its figures (the
whole duration, mean TTFT, mean TPOT) are weighted sums over these steps: that is what the fit compares.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvplan.calibrate.observations import Loads, figure_rows, loads_of
from kvplan.calibrate.results.deployment import Deployed
from kvplan.calibrate.results.outcome import BatchResult, LoadResult
from kvplan.calibrate.results.ranks import exchange_seconds, rank_clock, rank_seconds, rank_steps
from kvplan.estimate.speed.simulation.batching import simulate_requests
from kvplan.estimate.speed.simulation.figures import SimulatedFigures, simulated_figures
from kvplan.estimate.speed.simulation.interface import Simulation
from kvplan.estimate.speed.steps.rank_step import RankStep
from kvplan.estimate.speed.steps.step_time import Speed


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
