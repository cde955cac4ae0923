"""Coefficients from results: fitted where the results determine them, else as they were, and scored by leaving out.

Which coefficients observations determine: the singular values of what they change, beside what is believed.

Columns of the Jacobian are how the logarithms of all figures change with the logarithm of a coefficient, in units of
the figures' noise and of the coefficient's own prior spread. A singular value of 1 says that the observations know a
direction as well as the prior does; directions above ``_TOLD`` are taken from the observations. Each needs one
coefficient to stand for it: those are chosen by QR with column pivoting on the right singular vectors (Golub, Klema and
Stewart 1976, "Rank degeneracy and least squares problems"; for models like these: Burth, Verghese and Velez-Reyes 1999,
"Subset selection for improved parameter estimation in on-line identification of a synchronous generator").
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import pandas as pd

from kvplan.calibrate.fit import SPREADS, Fit, Problem
from kvplan.calibrate.results.matching import Matched
from kvplan.calibrate.results.observing import RankObservation, ServedResult, TimedBatch
from kvplan.calibrate.scoring import FIGURES, summarize_errors
from kvplan.catalog.devices.measured import HeldOutError
from kvplan.errors import KvplanError
from kvplan.estimate.speed.steps.step_time import Speed

_TOLD: Final = 2.0
"""The observations' word counts for at least four fifths of such a direction: 2^2 / (2^2 + 1^2)."""
_LEAST_NOISE: Final = 0.03
"""Another run of the same load: a few per cent, however well few results are fitted."""
_ROUNDS: Final = 2
_NAMES: Final = tuple(SPREADS)
_MOST_PARTS: Final = 10
STEP: Final = "step"
"""The figure of a batch."""


@dataclass(frozen=True, slots=True)
class Learned:
    """speed: determined coefficients from the results, the others as ``expected``.

    fitted: errors on the results themselves; left_out: on each setting, by a fit to the others (parts of the settings,
    where there are more than ten). Both by figure, empty where there is too little to tell.
    """

    speed: Speed
    expected: Speed
    noise: float
    identified: Identified
    num_settings: int
    fitted: dict[str, HeldOutError]
    left_out: dict[str, HeldOutError]


def learn(matched: Matched, expected: Speed) -> Learned:
    """KvplanError where the results determine nothing."""
    # The first schedules are those of what is expected; the second ones tell what the results determine.
    speed = Problem(observe_all(matched, expected), expected, _NAMES).solve().speed
    observed = observe_all(matched, speed)
    identified = _identified(observed, expected)
    for _ in range(_ROUNDS):
        fit = Problem(observed, expected, identified.names).solve()
        observed = observe_all(matched, fit.speed)
    # Equal for runs of one load at one setting, which are left out together.
    settings = [_setting(each) for each in matched.all]
    return Learned(
        speed=fit.speed,
        expected=expected,
        noise=fit.noise,
        identified=identified,
        num_settings=len(set(settings)),
        fitted=summarize_errors(errors(matched.all, fit.speed)),
        left_out=_left_out(matched.all, observed, settings, expected, identified.names),
    )


def observe_all(matched: Matched, speed: Speed) -> list[RankObservation]:
    """Each result's observation, loads scheduled as ``speed`` says."""
    return [each.observe(speed) for each in matched.all]


def _identified(observed: Sequence[RankObservation], expected: Speed) -> Identified:
    problem = Problem(observed, expected, _NAMES)
    found = problem.solve()
    noise = max(found.noise, _LEAST_NOISE)
    identified = identify(problem.jacobian(Fit(found.speed, noise)), _NAMES, [SPREADS[name] for name in _NAMES])
    if not identified.names:
        raise KvplanError(
            "These results are too few or too alike to fit anything.",
            hint="add results of other loads and settings; `kvplan plan --measured` takes one alone",
        )
    return identified


# ---- errors


def errors(results: Sequence[ServedResult | TimedBatch], speed: Speed) -> pd.DataFrame:
    """Predicted / measured - 1 in percent: a row per result, a column per figure, NaN where either is missing."""
    return pd.DataFrame([_errors(each, speed) for each in results], columns=[*FIGURES, STEP], dtype="float64")


def _errors(each: ServedResult | TimedBatch, speed: Speed) -> dict[str, float | None]:
    if isinstance(each, TimedBatch):
        return {STEP: _error(float(each.observe(speed).seconds(speed)[0]), each.result.seconds)}
    predicted, measured = each.predicted(speed), each.result.figures
    found = {
        "output_throughput": _error(predicted.output_throughput, measured.output_throughput),
        "tpot": _error(predicted.median_tpot_seconds, measured.median_tpot),
        "ttft": _error(predicted.median_ttft_seconds, measured.median_ttft),
    }
    if each.arrives_over_time:  # an open loop's throughput is its arrivals'
        found["output_throughput"] = None
    return found


def _error(predicted: float | None, measured: float | None) -> float | None:
    return None if not predicted or not measured else 100 * (predicted / measured - 1)


# ---- leaving out


def _setting(each: ServedResult | TimedBatch) -> Hashable:
    model, tp = each.of.spec.id, each.of.work.layout.tensor_parallel_size
    if isinstance(each, TimedBatch):
        return model, tp, each.result.requests
    requests, limits = each.result.requests, each.of.limits
    lengths = sum(one.num_prompt_tokens for one in requests), sum(one.num_output_tokens for one in requests)
    return model, tp, limits, each.result.max_concurrency, len(requests), lengths, requests[-1].arrival_seconds


def _left_out(
    results: Sequence[ServedResult | TimedBatch],
    observed: Sequence[RankObservation],
    settings: Sequence[Hashable],
    expected: Speed,
    names: Sequence[str],
) -> dict[str, HeldOutError]:
    """The errors on each part of the settings of a fit to the other parts; {} for a single setting."""
    distinct = list(dict.fromkeys(settings))
    if len(distinct) < 2:
        return {}
    scored = []
    for part in range(min(len(distinct), _MOST_PARTS)):
        is_out = [setting in distinct[part::_MOST_PARTS] for setting in settings]
        found = Problem(list(_those(observed, is_out, False)), expected, names).solve().speed
        scored.append(errors(list(_those(results, is_out, True)), found))
    return summarize_errors(pd.concat(scored))


_Item = TypeVar("_Item")


def _those(items: Sequence[_Item], marks: Sequence[bool], wanted: bool) -> Iterator[_Item]:
    return (item for item, mark in zip(items, marks, strict=True) if mark == wanted)


@dataclass(frozen=True, slots=True)
class Identified:
    """names: the coefficients that the observations determine. singular_values: of all directions, largest first.

    condition: of the chosen columns; 1 where each is seen by itself. uncertainty: relative standard error by name.
    """

    names: tuple[str, ...]
    singular_values: tuple[float, ...]
    condition: float
    uncertainty: dict[str, float]


def identify(jacobian: np.ndarray, names: Sequence[str], spreads: Sequence[float]) -> Identified:
    """jacobian [M, P]: of log figures over their noise, by log coefficient. spreads [P]: standard deviations."""
    scaled = jacobian * np.asarray(spreads)
    values, right = np.linalg.svd(scaled, full_matrices=False)[1:]
    rank = int((values >= _TOLD).sum())
    chosen = sorted(_pivots(right[:rank]))
    columns = scaled[:, chosen]
    return Identified(
        names=tuple(names[index] for index in chosen),
        singular_values=tuple(float(value) for value in values) + (0.0,) * (len(names) - len(values)),
        condition=float(np.linalg.cond(columns)) if chosen else 1.0,
        uncertainty=_standard_errors(jacobian[:, chosen], [names[index] for index in chosen]),
    )


def _pivots(rows: np.ndarray) -> list[int]:
    """Choose as many columns of ``rows`` [R, P] as it has rows: the longest once those before are projected away."""
    left = rows.copy()
    found: list[int] = []
    for _ in range(len(rows)):
        lengths = np.linalg.norm(left, axis=0)
        lengths[found] = 0.0
        pivot = int(np.argmax(lengths))
        direction = left[:, pivot] / lengths[pivot]
        left = left - np.outer(direction, direction @ left)
        found.append(pivot)
    return found


def _standard_errors(columns: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    if not names:
        return {}
    covariance = np.linalg.inv(columns.T @ columns)
    return {name: float(np.sqrt(covariance[index, index])) for index, name in enumerate(names)}
