"""How far predictions are from rows that they did not see: the split by settings, and the error table."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kvplan.calibrate.fit import fit_speed
from kvplan.calibrate.observations import observe
from kvplan.calibrate.trials import MeasuredTrial
from kvplan.catalog.measured import HeldOutError
from kvplan.errors import KvplanError
from kvplan.estimate.speed.batching import play_requests
from kvplan.estimate.speed.simulated_figures import play_figures
from kvplan.estimate.speed.step_time import Speed, StepTimes

LEAST_SETTINGS: Final = 6


@dataclass(frozen=True, slots=True)
class Split:
    """Trials to fit on and trials to score, no setting in both."""

    fitted: tuple[MeasuredTrial, ...]
    held_out: tuple[MeasuredTrial, ...]


@dataclass(frozen=True, slots=True)
class FigureError:
    """Predicted / measured - 1 of one trial, by figure (output_throughput, tpot, ttft), in percent."""

    trial_id: str
    errors_pct: dict[str, float]


def split_by_settings(trials: Sequence[MeasuredTrial], held_out: float, seed: int) -> Split:
    """A share ``held_out`` of the settings, drawn by seed, is kept from the fit. KvplanError for too few settings."""
    settings = list(dict.fromkeys(trial.setting for trial in trials))
    if len(settings) < LEAST_SETTINGS:
        raise KvplanError(
            f"The rows hold {len(settings)} settings, and a calibration takes at least {LEAST_SETTINGS}.",
            hint="sweep more values of --max-num-seqs and --max-num-batched-tokens",
        )
    shuffled = sorted(settings, key=str)
    random.Random(seed).shuffle(shuffled)
    count = min(round(held_out * len(shuffled)), len(shuffled) - LEAST_SETTINGS // 2)
    kept_back: set[tuple[Any, ...]] = set(shuffled[:count])
    return Split(
        fitted=tuple(trial for trial in trials if trial.setting not in kept_back),
        held_out=tuple(trial for trial in trials if trial.setting in kept_back),
    )


def fit_trials(trials: Sequence[MeasuredTrial], expected: Speed) -> Speed:
    """The coefficients of these trials."""
    observations = [found for trial in trials if (found := observe(trial)) is not None]
    return fit_speed(observations, expected).speed


def predict_figures(trial: MeasuredTrial, speed: Speed) -> dict[str, float | None]:
    """Output throughput, median TPOT and TTFT (seconds) from lengths, limits and coefficients alone."""
    times = StepTimes(trial.shape, speed)
    played = play_requests(trial.requests, trial.limits, times, max_concurrency=trial.max_concurrency)
    figures = play_figures(played)
    return {
        "output_throughput": figures.output_throughput,
        "tpot": figures.median_tpot_seconds,
        "ttft": figures.median_ttft_seconds,
    }


def score_trials(trials: Sequence[MeasuredTrial], speed: Speed) -> list[FigureError]:
    """The errors of every trial."""
    scored = []
    for trial in trials:
        predicted, row = predict_figures(trial, speed), trial.row
        measured = {
            "output_throughput": row["output_throughput"],
            "tpot": _seconds(row["median_tpot_ms"]),
            "ttft": _seconds(row["median_ttft_ms"]),
        }
        errors = {
            name: 100 * (value / measured[name] - 1)
            for name, value in predicted.items()
            if value is not None and measured[name]
        }
        scored.append(FigureError(str(row["trial_id"]), errors))
    return scored


def _seconds(milliseconds: float | None) -> float:
    return (milliseconds or 0.0) / 1000


def summarize_errors(scored: Sequence[FigureError]) -> dict[str, HeldOutError]:
    """Median and 90th percentile of |error| by figure."""
    found = {}
    for name in ("output_throughput", "tpot", "ttft"):
        sizes = [abs(each.errors_pct[name]) for each in scored if name in each.errors_pct]
        if sizes:
            found[name] = HeldOutError(float(np.median(sizes)), float(np.percentile(sizes, 90)))
    return found


def repetition_spread_pct(trials: Sequence[MeasuredTrial]) -> float | None:
    """What no prediction can be better than: the median distance of a run from its setting's median throughput.

    None where no setting ran twice.
    """
    groups: dict[tuple[Any, ...], list[float]] = {}
    for trial in trials:
        groups.setdefault(trial.setting, []).append(float(trial.row["output_throughput"]))
    distances = [
        100 * abs(value / float(np.median(values)) - 1)
        for values in groups.values()
        if len(values) > 1
        for value in values
    ]
    return float(np.median(distances)) if distances else None
