"""How far a fit is off: on the points it was fitted to, by kind of model, and on models that it did not see."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from kernel_speeds.fitting import Sampled, deviations
from kvplan.estimate.speed.steps.rank_step import KernelSpeed

Error = dict[str, float]


def spread(found: Iterable[float]) -> Error:
    """Median and 90th percentile of |fitted / measured - 1|, in percent."""
    errors = 100 * np.abs(np.array(list(found)))
    return {"median_pct": round(float(np.median(errors)), 1), "p90_pct": round(float(np.percentile(errors, 90)), 1)}


def of_kind(data: Sampled, *kinds: str) -> Sampled:
    return data.of([point.model.kind in kinds for point in data.points])


def errors(data: Sampled, speed: KernelSpeed) -> dict[str, Error]:
    """Of all points, and of each kind of model that was fitted."""
    found = {"all": spread(deviations(speed, data))}
    for kind in dict.fromkeys(point.model.kind for point in data.points):
        found[kind] = spread(deviations(speed, of_kind(data, kind)))
    return found


def model_left_out(data: Sampled, fit: Callable[[Sampled], KernelSpeed]) -> Error | None:
    """Of every model by a fit to the others; None where there is only one."""
    names = list(dict.fromkeys(point.model.name for point in data.points))
    if len(names) < 2:
        return None
    found: list[float] = []
    for name in names:
        is_other = [point.model.name != name for point in data.points]
        own = data.of([not other for other in is_other])
        found += list(deviations(fit(data.of(is_other)), own))
    return spread(found)
