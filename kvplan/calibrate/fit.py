"""The coefficients that best explain the measured durations: damped Gauss-Newton in logarithms, robust to outliers.

It minimises, over the logarithms x of the coefficients (which keeps them positive):

    sum over durations of weight x huber(log(predicted / measured) / noise)  +  sum of ((x - expected) / spread)^2 / 2

The step durations of a trial are weighted by their share of the trial and sum to 1; so do its figures, which keeps
totals right although single slow steps are distrusted. The second sum matters only for what the rows cannot tell (one
model's rows cannot separate the overhead of its layers from the reading of its weights): it keeps such a coefficient
near what is expected of the device. ``noise`` is estimated along with the coefficients.

Why not ``scipy.optimize.least_squares``: its named losses cannot be used, because the second sum must not be robust
and the noise is estimated too. With a loss of our own and the noise in an outer loop it takes about as many lines as
the solver here, finds the same coefficients to four digits and the same held-out errors (five synthetic sweeps and one
real one), takes 2 to 4 times as long, and adds 143 MB to the installation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from kvplan.errors import KvplanError
from kvplan.estimate.speed.steps.step_time import Speed

# Logarithms of the factors by which a coefficient may plausibly differ from what is expected.
SPREADS: Final = {
    "step_seconds": 1.0,
    "layer_seconds": 1.0,
    "sequence_seconds": 1.5,
    "bandwidth": 0.4,
    "flops": 0.5,
    "kv_bandwidth": 0.6,
    "attention_flops": 1.2,
}
_EXPECTATION_WEIGHT: Final = 0.3
_SHARPNESSES: Final = (1.0, 4.0)
_ROW_STEPS: Final = (1.0, 8.0)
_CLEARLY: Final = 0.98
_HUBER: Final = 1.5
_LEAST_NOISE: Final = 1e-4
_MOST_ROUNDS: Final = 60
# What a step costs at any depth (embedding, final norm, head, sampling, scheduling), in layers' overheads.
_STEP_IN_LAYERS: Final = 2.0


class Observed(Protocol):
    """Durations that were measured, and what coefficients say of the steps behind them; see ``Observation``."""

    @property
    def num_layers(self) -> float: ...

    @property
    def has_steps(self) -> bool:
        """Whether durations of steps were measured, and not only figures."""

    @property
    def group_starts(self) -> np.ndarray: ...

    @property
    def group_seconds(self) -> np.ndarray: ...

    @property
    def figure_weights(self) -> np.ndarray: ...

    @property
    def figure_seconds(self) -> np.ndarray: ...

    def seconds(self, speed: Speed) -> np.ndarray:
        """Return the seconds of every step, [N]: the residuals compare sums of these with what was measured."""


@dataclass(frozen=True, slots=True)
class Fit:
    """noise: typical |log(predicted / measured)| of a duration."""

    speed: Speed
    noise: float


def fit_speed(observations: Sequence[Observed], expected: Speed) -> Fit:
    """The best fit over sharpness and row step; both are 1 unless another value is clearly better.

    KvplanError without observations.
    """
    if not observations:
        raise KvplanError("No row can be simulated, so there is nothing to fit.", hint="run the sweep again")
    problems = [
        Problem(observations, replace(expected, sharpness=sharpness, row_step=row_step))
        for row_step in _ROW_STEPS
        for sharpness in _SHARPNESSES
    ]
    best, *others = [problem.solve() for problem in problems]
    noise = best.noise  # losses are comparable only at equal noise
    least = problems[0].loss_of(best, noise)
    for problem, found in zip(problems[1:], others, strict=True):
        loss = problem.loss_of(found, noise)
        if loss < _CLEARLY * least:
            best, least = found, loss
    return best


class Problem:
    """The fit at one sharpness and row step. x: logarithms of the free coefficients, in the order of ``names``.

    names: by default all, but where all observations have one depth, which cannot separate a step's own overhead from
    that of its layers: then their ratio is fixed. Coefficients that are not named stay as expected.
    """

    def __init__(self, observations: Sequence[Observed], expected: Speed, names: Sequence[str] | None = None) -> None:
        self._observations = observations
        self._expected = expected
        depths = {observation.num_layers for observation in observations}
        self._is_tied = names is None and len(depths) == 1
        free = [name for name in SPREADS if not (self._is_tied and name == "step_seconds")]
        self.names = free if names is None else list(names)
        self._start = np.log([max(getattr(expected, name), 1e-9) for name in self.names])
        self._stiffness = np.array([_EXPECTATION_WEIGHT / SPREADS[name] ** 2 for name in self.names])
        self._weights = np.concatenate([_weights_of(observation) for observation in observations])

    def solve(self) -> Fit:
        x, damping = self._start.copy(), 1e-2
        residuals = self._residuals(x)
        noise = self._noise(residuals)
        for _ in range(_MOST_ROUNDS):
            step = self._step(x, residuals, noise, damping)
            tried = x + np.clip(step, -1.0, 1.0)
            tried_residuals = self._residuals(tried)
            if self._loss(tried, tried_residuals, noise) <= self._loss(x, residuals, noise):
                moved = float(np.abs(tried - x).max())
                x, residuals, damping = tried, tried_residuals, max(damping / 4, 1e-9)
                noise = self._noise(residuals)
                if moved < 1e-7:
                    break
            else:
                damping *= 8
                if damping > 1e6:
                    break
        return Fit(self._speed(x), noise)

    def jacobian(self, fit: Fit) -> np.ndarray:
        """[M, P]: how the logarithms of all durations change with those of the free coefficients, over their noise."""
        x = np.log([max(getattr(fit.speed, name), 1e-9) for name in self.names])
        return self._derivatives(x, self._residuals(x)) * (np.sqrt(self._weights) / fit.noise)[:, None]

    def loss_of(self, fit: Fit, noise: float) -> float:
        """The minimised sum at a given noise."""
        x = np.log([getattr(fit.speed, name) for name in self.names])
        return self._loss(x, self._residuals(x), noise)

    def _speed(self, x: np.ndarray) -> Speed:
        values = dict(zip(self.names, (float(value) for value in np.exp(x)), strict=True))
        if self._is_tied:
            values["step_seconds"] = _STEP_IN_LAYERS * values["layer_seconds"]
        return replace(self._expected, **values)

    def _residuals(self, x: np.ndarray) -> np.ndarray:
        speed = self._speed(x)
        return np.concatenate([_residuals_of(observation, speed) for observation in self._observations])

    def _noise(self, residuals: np.ndarray) -> float:
        """The weighted median of the absolute residuals, as a standard deviation."""
        order = np.argsort(np.abs(residuals))
        cumulative = np.cumsum(self._weights[order])
        middle = int(np.searchsorted(cumulative, cumulative[-1] / 2))
        return max(1.4826 * float(np.abs(residuals[order[middle]])), _LEAST_NOISE)

    def _loss(self, x: np.ndarray, residuals: np.ndarray, noise: float) -> float:
        size = np.abs(residuals) / noise
        huber = np.where(size < _HUBER, size**2 / 2, _HUBER * size - _HUBER**2 / 2)
        return float(np.sum(self._weights * huber) + np.sum(self._stiffness * (x - self._start) ** 2) / 2)

    def _step(self, x: np.ndarray, residuals: np.ndarray, noise: float, damping: float) -> np.ndarray:
        trust = np.minimum(1.0, _HUBER * noise / np.maximum(np.abs(residuals), 1e-12))
        weights = self._weights * trust / noise**2
        jacobian = self._derivatives(x, residuals)
        # einsum stays in this thread: on a busy machine the threads of a BLAS product wait for each other much longer
        normal = np.einsum("ni,n,nj->ij", jacobian, weights, jacobian) + np.diag(self._stiffness)
        gradient = np.einsum("ni,n->i", jacobian, weights * residuals) + self._stiffness * (x - self._start)
        return -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)

    def _derivatives(self, x: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        width = 1e-5
        columns = [(self._residuals(x + width * unit) - residuals) / width for unit in np.eye(len(x))]
        return np.stack(columns, axis=1)


def _residuals_of(observation: Observed, speed: Speed) -> np.ndarray:
    seconds = observation.seconds(speed)
    figures = np.log(np.einsum("fn,n->f", observation.figure_weights, seconds) / observation.figure_seconds)
    if not observation.has_steps:
        return figures
    groups = np.add.reduceat(seconds, observation.group_starts)
    return np.concatenate([np.log(groups / np.maximum(observation.group_seconds, 1e-9)), figures])


def _weights_of(observation: Observed) -> np.ndarray:
    num_figures = len(observation.figure_seconds)
    figures = np.full(num_figures, 1 / num_figures)
    if not observation.has_steps:
        return figures
    return np.concatenate([observation.group_seconds / observation.group_seconds.sum(), figures])
