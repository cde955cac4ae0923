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
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from kvplan.calibrate.observations import Observation
from kvplan.errors import KvplanError
from kvplan.estimate.speed.step_time import Speed

# Logarithms of the factors by which a coefficient may plausibly differ from what is expected.
_SPREAD: Final = {
    "layer_seconds": 1.0,
    "step_seconds": 1.0,
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


@dataclass(frozen=True, slots=True)
class Fit:
    """noise: typical |log(predicted / measured)| of a duration."""

    speed: Speed
    noise: float


def fit_speed(observations: Sequence[Observation], expected: Speed) -> Fit:
    """The best fit over sharpness and row step; both are 1 unless another value is clearly better.

    KvplanError without observations.
    """
    if not observations:
        raise KvplanError("No row can be simulated, so there is nothing to fit.", hint="run the sweep again")
    problems = [
        _Problem(observations, replace(expected, sharpness=sharpness, row_step=row_step))
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


def step_seconds(observation: Observation, speed: Speed) -> np.ndarray:
    """StepTimes.seconds of every step, as an array [N]."""
    shape, loads, sharpness = observation.shape, observation.loads, speed.sharpness

    def join(memory: np.ndarray | float, compute: np.ndarray) -> np.ndarray:
        return (memory**sharpness + compute**sharpness) ** (1 / sharpness)

    body_bytes = shape.body_bytes + loads.tokens * shape.activation_bytes_per_token
    seconds = speed.step_seconds + speed.layer_seconds * shape.num_layers + speed.sequence_seconds * loads.sequences
    seconds = seconds + join(
        body_bytes / speed.bandwidth, 2 * shape.body_parameters * _padded(loads.tokens, speed.row_step) / speed.flops
    )
    head = join(shape.head_bytes / speed.bandwidth, 2 * shape.head_parameters * loads.sampled / speed.flops)
    seconds = seconds + np.where(loads.sampled > 0, head, 0.0)
    seconds = seconds + loads.kv_tokens * shape.kv_bytes_per_token / speed.kv_bandwidth
    return seconds + 2 * loads.pairs * shape.attention_width / speed.attention_flops


def _padded(tokens: np.ndarray, row_step: float) -> np.ndarray:
    """step_time.padded_rows of every step."""
    if row_step <= 1:
        return tokens
    step = np.where(tokens <= 8 * row_step, row_step, 8 * row_step)
    return np.ceil(tokens / step) * step


class _Problem:
    """The fit at one sharpness and row step. x: logarithms of the free coefficients, in the order of ``names``."""

    def __init__(self, observations: Sequence[Observation], expected: Speed) -> None:
        self._observations = observations
        self._expected = expected
        depths = {observation.shape.num_layers for observation in observations}
        # One depth cannot separate a step's own overhead from that of its layers, so their ratio is fixed.
        self._is_tied = len(depths) == 1
        self.names = [
            each.name
            for each in fields(Speed)
            if each.name not in ("sharpness", "row_step") and not (self._is_tied and each.name == "step_seconds")
        ]
        self._start = np.log([max(getattr(expected, name), 1e-9) for name in self.names])
        self._stiffness = np.array([_EXPECTATION_WEIGHT / _SPREAD[name] ** 2 for name in self.names])
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

    def loss_of(self, fit: Fit, noise: float) -> float:
        """The minimised sum at a given noise."""
        x = np.log([getattr(fit.speed, name) for name in self.names])
        return self._loss(x, self._residuals(x), noise)

    def _speed(self, x: np.ndarray) -> Speed:
        values = dict(zip(self.names, (float(value) for value in np.exp(x)), strict=True))
        if self._is_tied:
            values["step_seconds"] = _STEP_IN_LAYERS * values["layer_seconds"]
        return Speed(**values, sharpness=self._expected.sharpness, row_step=self._expected.row_step)

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
        width = 1e-5
        columns = [(self._residuals(x + width * unit) - residuals) / width for unit in np.eye(len(x))]
        jacobian = np.stack(columns, axis=1)
        # einsum stays in this thread: on a busy machine the threads of a BLAS product wait for each other much longer
        normal = np.einsum("ni,n,nj->ij", jacobian, weights, jacobian) + np.diag(self._stiffness)
        gradient = np.einsum("ni,n->i", jacobian, weights * residuals) + self._stiffness * (x - self._start)
        return -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)


def _residuals_of(observation: Observation, speed: Speed) -> np.ndarray:
    seconds = step_seconds(observation, speed)
    figures = np.log(np.einsum("fn,n->f", observation.figure_weights, seconds) / observation.figure_seconds)
    if not observation.has_steps:
        return figures
    groups = np.add.reduceat(seconds, observation.group_starts)
    return np.concatenate([np.log(groups / np.maximum(observation.group_seconds, 1e-9)), figures])


def _weights_of(observation: Observation) -> np.ndarray:
    num_figures = len(observation.figure_seconds)
    figures = np.full(num_figures, 1 / num_figures)
    if not observation.has_steps:
        return figures
    return np.concatenate([observation.group_seconds / observation.group_seconds.sum(), figures])
