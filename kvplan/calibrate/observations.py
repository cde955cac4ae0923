"""What a trial says about step times: its schedule simulated again, and the durations that were measured.

Which steps a trial took follows from lengths and limits alone (and, if requests arrive over time, from the measured
durations), so the load of every step is known exactly. The durations are those of each step, or of each point of a
long trial's series, and three figures that are linear in the durations of the steps: their sum, the mean TTFT and the
mean TPOT. If the number of simulated steps differs from the number taken, only the three figures are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvplan.calibrate.trials import MeasuredTrial
from kvplan.estimate.speed.simulation.batching import simulate_requests
from kvplan.estimate.speed.simulation.interface import Simulation
from kvplan.estimate.speed.steps.step_time import Speed, StepShape


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Per step, float64 [N]: tokens, sequences, sequences sampled, K and V tokens read, attended pairs."""

    tokens: np.ndarray
    sequences: np.ndarray
    sampled: np.ndarray
    kv_tokens: np.ndarray
    pairs: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """One trial. group_starts [G]: the first step of each point of the series; group_seconds [G]: what it took.

    figure_weights [F, N] x durations of steps = figure_seconds [F].
    """

    shape: StepShape
    loads: Loads
    group_starts: np.ndarray
    group_seconds: np.ndarray
    figure_weights: np.ndarray
    figure_seconds: np.ndarray

    @property
    def num_layers(self) -> float:
        return self.shape.num_layers

    @property
    def has_steps(self) -> bool:
        return len(self.group_starts) > 0

    def seconds(self, speed: Speed) -> np.ndarray:
        """StepTimes.seconds of every step, as an array [N]."""
        shape, loads, sharpness = self.shape, self.loads, speed.sharpness

        def join(memory: np.ndarray | float, compute: np.ndarray) -> np.ndarray:
            return (memory**sharpness + compute**sharpness) ** (1 / sharpness)

        body_bytes = shape.body_bytes + loads.tokens * shape.activation_bytes_per_token
        seconds = speed.step_seconds + speed.layer_seconds * shape.num_layers + speed.sequence_seconds * loads.sequences
        rows = _padded(loads.tokens, speed.row_step)
        seconds = seconds + join(body_bytes / speed.bandwidth, 2 * shape.body_parameters * rows / speed.flops)
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


class _RecordedClock:
    """A clock that returns the measured durations step by step, and repeats the last one at the end."""

    def __init__(self, durations: Sequence[float]) -> None:
        self._durations = durations
        self._next = 0

    def seconds(self, *_load: float) -> float:
        position = min(self._next, len(self._durations) - 1)
        self._next += 1
        return float(self._durations[position])


def observe(trial: MeasuredTrial) -> Observation | None:
    """The trial's observation; None if its schedule depends on times that were not recorded."""
    num_steps = trial.row["num_steps"]
    assert num_steps, "a served trial took steps"
    points = _point_seconds(trial)
    if points is None:
        if trial.arrives_over_time:
            return None
        mean_seconds = _duration(trial) / num_steps
        return _observation(trial, _simulate(trial, [mean_seconds]), None)
    stride = -(-num_steps // len(points))
    steps = np.repeat(points / stride, stride)[:num_steps]
    simulated = _simulate(trial, steps)
    if len(simulated.loads) == num_steps:
        return _observation(trial, simulated, points)
    return None if trial.arrives_over_time else _observation(trial, simulated, None)


def _duration(trial: MeasuredTrial) -> float:
    seconds = trial.row["duration"]
    assert seconds is not None, "a served trial has a duration"
    return seconds


def _point_seconds(trial: MeasuredTrial) -> np.ndarray | None:
    """Seconds of steps in each point of the series."""
    series = trial.series
    if not series or not series.get("seconds"):
        return None
    if series.get("step_seconds"):
        return np.asarray(series["step_seconds"], dtype=np.float64)
    if trial.arrives_over_time:  # the gaps between points include waiting
        return None
    return np.diff(np.asarray(series["seconds"], dtype=np.float64), prepend=0.0)


def _simulate(trial: MeasuredTrial, durations: Sequence[float] | np.ndarray) -> Simulation:
    return simulate_requests(
        trial.requests, trial.limits, _RecordedClock(list(durations)), max_concurrency=trial.max_concurrency
    )


def _observation(trial: MeasuredTrial, simulated: Simulation, points: np.ndarray | None) -> Observation:
    num_steps = len(simulated.loads)
    weights, seconds = _figures(trial, simulated)
    stride = 1 if points is None else -(-num_steps // len(points))
    return Observation(
        shape=trial.shape,
        loads=loads_of(simulated),
        group_starts=np.arange(0, num_steps, stride) if points is not None else np.empty(0, dtype=np.int64),
        group_seconds=points if points is not None else np.empty(0),
        figure_weights=weights,
        figure_seconds=seconds,
    )


def loads_of(simulated: Simulation) -> Loads:
    """The loads of the simulated steps as arrays."""
    steps = simulated.loads
    columns = (steps.num_tokens, steps.num_sequences, steps.num_sampled, steps.num_kv_tokens, steps.num_pairs)
    return Loads(*(np.asarray(column, dtype=np.float64) for column in columns))


def _figures(trial: MeasuredTrial, simulated: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean TTFT of the whole trial and, if there is one, the mean TPOT."""
    mean_ttft_ms, mean_tpot_ms = trial.row["mean_ttft_ms"], trial.row["mean_tpot_ms"]
    assert mean_ttft_ms is not None, "a served trial has a TTFT"
    return figure_rows(simulated, _duration(trial), mean_ttft_ms / 1000, mean_tpot_ms / 1000 if mean_tpot_ms else None)


def figure_rows(
    simulated: Simulation, duration: float | None, mean_ttft: float | None, mean_tpot: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Weights [F, N] of the steps in each figure and its measured seconds [F]; figures that are None are left out.

    duration: of the whole run, of which waiting for arrivals is taken off.
    """
    weights, seconds = [], []
    if duration is not None:
        weights.append(np.ones(len(simulated.loads)))
        seconds.append(duration - (simulated.seconds - sum(simulated.loads.step_seconds)))
    if mean_ttft:
        weights.append(_ttft_weights(simulated))
        seconds.append(mean_ttft)
    if mean_tpot and any(request.num_output_tokens > 1 for request in simulated.requests):
        weights.append(_tpot_weights(simulated))
        seconds.append(mean_tpot)
    return np.stack(weights), np.asarray(seconds)


def _ttft_weights(simulated: Simulation) -> np.ndarray:
    """[N]: the share of requests that wait for their first token in a step."""
    first = np.zeros(len(simulated.loads) + 1)
    for request in simulated.requests:
        first[request.arrival_step] += 1
        first[request.token_steps[0][0] + 1] -= 1
    return np.cumsum(first)[:-1] / len(simulated.requests)


def _tpot_weights(simulated: Simulation) -> np.ndarray:
    """[N]: by how much a step's seconds lengthen the mean TPOT."""
    later = np.zeros(len(simulated.loads) + 1)
    with_more = [request for request in simulated.requests if request.num_output_tokens > 1]
    for request in with_more:
        share = 1 / (request.num_output_tokens - 1)
        later[request.token_steps[0][0] + 1] += share
        later[request.token_steps[-1][1]] -= share
    return np.cumsum(later)[:-1] / len(with_more)
