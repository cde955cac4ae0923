"""The coefficients that explain the measured durations best: a damped Gauss-Newton in logarithms, robust to outliers.

What is minimised over the logarithms x of the coefficients (which keeps them positive):

    sum over durations of weight x huber(log(predicted / measured) / noise)  +  sum of ((x - expected) / spread)^2 / 2

A trial's durations of steps weigh as much as the share of the trial they take, 1 in all; its figures weigh 1 in all,
too, so that sums come out right although single slow steps are distrusted. The second sum matters only for what the
rows do not tell (one model's rows cannot separate its layers' overhead from its weights): it holds such a coefficient
near what is expected of the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from kvplan.calibrate.observations import Observation
from kvplan.errors import KvplanError
from kvplan.estimate.speed.step_time import Speed

# Factors (as logarithms) by which a coefficient may well differ from what is expected.
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
# Beside so many layers, what a step costs whatever its depth: embedding, final norm, head, sampling, scheduling.
_STEP_IN_LAYERS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Fit:
    """noise: typical |log(predicted / measured)| of a duration."""

    speed: Speed
    noise: float


def fit_speed(observations: Sequence[Observation], expected: Speed) -> Fit:
    """The best fit over sharpnesses and row steps, 1 unless another is clearly better. KvplanError without rows."""
    if not observations:
        raise KvplanError("No row can be played again, so there is nothing to fit.", hint="run the sweep again")
    problems = [
        _Problem(observations, replace(expected, sharpness=sharpness, row_step=row_step))
        for row_step in _ROW_STEPS
        for sharpness in _SHARPNESSES
    ]
    best, *others = [problem.solve() for problem in problems]
    noise = best.noise  # losses can be compared at one noise only
    least = problems[0].loss_of(best, noise)
    for problem, found in zip(problems[1:], others, strict=True):
        loss = problem.loss_of(found, noise)
        if loss < _CLEARLY * least:
            best, least = found, loss
    return best


def step_seconds(observation: Observation, speed: Speed) -> np.ndarray:
    """What StepTimes.seconds says of every step, as an array [N]."""
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
    """One sharpness and row step. x: logarithms of the free coefficients, in the order of ``names``."""

    def __init__(self, observations: Sequence[Observation], expected: Speed) -> None:
        self._observations = observations
        self._expected = expected
        depths = {observation.shape.num_layers for observation in observations}
        # With one depth nobody can tell a step's own overhead from its layers': they stand in a fixed ratio.
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
        """What is minimised, at a given noise."""
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
        """The weighted median of the residuals' sizes, as a standard deviation."""
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
        # einsum keeps to this thread: on a busy machine the threads of a BLAS product wait for each other far longer
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
