"""Which lines ``--boundary`` searches: the axis of each, its values, and what is fixed meanwhile."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from kvplan.errors import UsageError
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.axes import AXES, AxisValue
from kvplan.sweeps.forecast.prediction import Predictor
from kvplan.sweeps.schedules.search import BoundarySearch, SearchSequence

BOUNDARY_AXES: Final = ("max_model_len", "gpu_memory_utilization", "max_num_seqs")
_FRONTIER_POINTS: Final = 8


def make_search(
    axes_to_search: Sequence[str],
    axes: Mapping[str, Sequence[AxisValue]],
    base: TrialSettings,
    predictor: Predictor,
    seed: int,
    num_runs: int = 1,
) -> SearchSequence:
    """A search along each of ``axes_to_search``, on one line for every combination of the other axes that were given.

    An axis that is searched without given values gets a fine default range; while another axis is searched it keeps its
    base value. ``first*second`` is a pair: lines along the first for every value of the second, in a few steps if none
    were given.
    """
    names = [axis.split("*") for axis in axes_to_search]
    searched = {name for pair in names for name in pair}
    others = {name: axes[name] for name in AXES if name in axes and name not in searched}
    searches = []
    for axis, *seconds in names:
        _check_axes((axis, *seconds))
        values = list(axes.get(axis) or default_values(axis, predictor))
        beside = others | {
            name: axes.get(name) or _second_values(name, axis, values, base, predictor) for name in seconds
        }
        lines = [
            _line(axis, values, base.with_changes(**dict(zip(beside, combination, strict=True))))
            for combination in itertools.product(*beside.values())
        ]
        searches.append(BoundarySearch(axis, tuple(dict.fromkeys(lines)), predictor, seed, num_runs=num_runs))
    return SearchSequence(tuple(searches))


def _check_axes(names: Sequence[str]) -> None:
    for name in names:
        if name not in BOUNDARY_AXES:
            raise UsageError(f"--boundary cannot vary '{name}'.", hint="one of " + ", ".join(BOUNDARY_AXES))
    if len(names) > 2 or len(set(names)) < len(names):
        raise UsageError(
            f"--boundary '{'*'.join(names)}' is not a pair of axes.",
            hint="for example max_model_len*gpu_memory_utilization",
        )


def _line(axis: str, values: Sequence[AxisValue], fixed: TrialSettings) -> tuple[TrialSettings, ...]:
    # More context is harder, more utilization is easier; batches go from small to large.
    ordered = sorted(set(values), reverse=axis == "gpu_memory_utilization")
    return tuple(fixed.with_changes(**{axis: value}) for value in ordered)


def default_values(axis: str, predictor: Predictor) -> list[AxisValue]:
    """Sixty-four contexts up to the model's positions, utilizations in steps of 0.01, batches in powers of two up to
    the first that takes the whole workload at once."""
    if axis == "gpu_memory_utilization":
        return [round(step / 100, 2) for step in range(1, 101)]
    if axis == "max_num_seqs":
        return [1 << exponent for exponent in range((len(predictor.requests) - 1).bit_length() + 1)]
    limit = predictor.spec.max_position_embeddings or 32768
    step = max(1, limit // 64)
    return list(range(step, limit + 1, step))


def _second_values(
    name: str, axis: str, values: Sequence[AxisValue], base: TrialSettings, predictor: Predictor
) -> list[AxisValue]:
    """The values of the second axis of a pair, if none were given."""
    if (name, axis) == ("gpu_memory_utilization", "max_model_len"):
        return frontier_utilizations(base, min(values), max(values), predictor) or coarse_values(name, predictor)
    return coarse_values(name, predictor)


def frontier_utilizations(
    base: TrialSettings, shortest: AxisValue, longest: AxisValue, predictor: Predictor
) -> list[AxisValue]:
    """Utilizations from just below the one at which the ``shortest`` context is expected to start to just above the one
    for the ``longest``: between them the frontier rises, elsewhere it is flat. [] where it rises nowhere."""
    low, high = (_lowest_start(base.with_changes(max_model_len=length), predictor) for length in (shortest, longest))
    if low is None or high is None or low == high:
        return []
    step = (high - low) / (_FRONTIER_POINTS - 3)
    spread = [round((low + place * step) / 1000, 3) for place in range(-1, _FRONTIER_POINTS - 1)]
    return sorted({value for value in spread if 0 < value <= 1})


def _lowest_start(settings: TrialSettings, predictor: Predictor) -> int | None:
    """The lowest utilization, in thousandths, at which these settings are expected to start; None if they never do."""
    thousandths = range(1, 1001)
    place = bisect.bisect_left(
        thousandths,
        True,
        key=lambda share: predictor.memory(settings.with_changes(gpu_memory_utilization=share / 1000)).outcome == "ok",
    )
    return thousandths[place] if place < len(thousandths) else None


def coarse_values(axis: str, predictor: Predictor) -> list[AxisValue]:
    """About eight values of the second axis of a pair, over the whole of its default range."""
    values = default_values(axis, predictor)
    step = max(1, len(values) // 8)
    return values[step - 1 :: step]
