"""How far predictions are from rows that the fit did not see: the split by settings, and the errors."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvplan.calibrate.fit import fit_speed
from kvplan.calibrate.observations import observe
from kvplan.calibrate.trials import MeasuredTrial
from kvplan.catalog.devices.measured import HeldOutError
from kvplan.errors import KvplanError
from kvplan.estimate.speed.simulation.batching import simulate_requests
from kvplan.estimate.speed.simulation.figures import simulated_figures
from kvplan.estimate.speed.steps.step_time import Speed, StepTimes

FIGURES: Final = ("output_throughput", "tpot", "ttft")
LEAST_SETTINGS: Final = 6
LEVEL: Final = 0.9
"""How often a range should hold what is measured."""


@dataclass(frozen=True, slots=True)
class TrialSplit:
    """Trials to fit to and trials to score, with no setting in both."""

    fitted: tuple[MeasuredTrial, ...]
    held_out: tuple[MeasuredTrial, ...]


def split_by_settings(trials: Sequence[MeasuredTrial], held_out: float, seed: int) -> TrialSplit:
    """Hold out a share of the settings, drawn by seed. KvplanError for too few settings."""
    settings = list(dict.fromkeys(trial.setting for trial in trials))
    if len(settings) < LEAST_SETTINGS:
        raise KvplanError(
            f"The rows cover {len(settings)} settings, but a calibration needs at least {LEAST_SETTINGS}.",
            hint="sweep more values of --max-num-seqs and --max-num-batched-tokens",
        )
    shuffled = sorted(settings, key=str)
    random.Random(seed).shuffle(shuffled)
    drawn = set(shuffled[: min(round(held_out * len(shuffled)), len(shuffled) - LEAST_SETTINGS // 2)])
    return TrialSplit(
        fitted=tuple(trial for trial in trials if trial.setting not in drawn),
        held_out=tuple(trial for trial in trials if trial.setting in drawn),
    )


def fit_trials(trials: Sequence[MeasuredTrial], expected: Speed) -> Speed:
    """The coefficients of these trials."""
    observations = [found for trial in trials if (found := observe(trial)) is not None]
    return fit_speed(observations, expected).speed


def predicted_figures(trial: MeasuredTrial, speed: Speed) -> dict[str, float | None]:
    """Output throughput (tokens/s), median TPOT and TTFT (seconds) from lengths, limits and coefficients alone."""
    times = StepTimes(trial.shape, speed)
    figures = simulated_figures(
        simulate_requests(trial.requests, trial.limits, times, max_concurrency=trial.max_concurrency)
    )
    return {
        "output_throughput": figures.output_throughput,
        "tpot": figures.median_tpot_seconds,
        "ttft": figures.median_ttft_seconds,
    }


def measured_figures(trial: MeasuredTrial) -> dict[str, float | None]:
    """The same figures as the row has them."""
    return {
        "output_throughput": trial.row["output_throughput"],
        "tpot": _seconds(trial.row["median_tpot_ms"]),
        "ttft": _seconds(trial.row["median_ttft_ms"]),
    }


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def score_trials(trials: Sequence[MeasuredTrial], speed: Speed) -> pd.DataFrame:
    """Predicted / measured - 1 in percent: a row per trial, a column per figure, NaN where either is missing."""
    predicted = _figures([predicted_figures(trial, speed) for trial in trials])
    measured = _figures([measured_figures(trial) for trial in trials])
    return 100 * (predicted / measured.where(measured > 0) - 1)


def _figures(figures: Sequence[dict[str, float | None]]) -> pd.DataFrame:
    return pd.DataFrame(figures, columns=list(FIGURES), dtype="float64")


def summarize_errors(errors_pct: pd.DataFrame) -> dict[str, HeldOutError]:
    """Median, 90th percentile and conformal quantile of |error| by figure; figures without any error are left out."""
    sizes = errors_pct.abs().dropna(axis="columns", how="all")
    return {name: _summary(sizes[name].dropna()) for name in sizes}


def _summary(sizes: pd.Series[float]) -> HeldOutError:
    return HeldOutError(float(sizes.median()), float(sizes.quantile(0.9)), conformal_quantile(sizes.tolist()))


def conformal_quantile(sizes: Sequence[float], level: float = LEVEL) -> float:
    """What one more size like these stays within with probability ``level``: the one of rank ceil((n + 1) level).

    Fewer than 9 sizes cannot tell 9 in 10: then the largest, which holds n in n + 1.
    """
    rank = min(math.ceil((len(sizes) + 1) * level), len(sizes))
    return sorted(sizes)[rank - 1]


def repetition_spread_pct(trials: Sequence[MeasuredTrial]) -> float | None:
    """The error no prediction can beat: the median distance of a run from its setting's median throughput, in percent.

    None where no setting ran twice.
    """
    rates = pd.DataFrame(
        {"setting": [trial.setting for trial in trials], "rate": [trial.row["output_throughput"] for trial in trials]}
    )
    by_setting = rates.groupby("setting", sort=False)["rate"]
    distances = 100 * (rates["rate"] / by_setting.transform("median") - 1).abs()
    repeated = distances[by_setting.transform("size") > 1]
    return None if repeated.empty else float(repeated.median())
