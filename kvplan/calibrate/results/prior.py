"""What is believed of a device before any result is looked at: what the results do not determine stays so."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.calibrate.results.deployment import Deployed
from kvplan.estimate.speed.step_time import Speed
from kvplan.sweeps.forecast.step_cost import guess_speed


@dataclass(frozen=True, slots=True)
class Prior:
    """Coefficients, and in words where they come from."""

    speed: Speed
    source: str


def prior_of(of: Deployed) -> Prior:
    """Usual shares of the data sheet; of a CPU, what small machines reach for each core."""
    if of.gpu.is_cpu:
        return Prior(guess_speed("cpu"), "what CPUs usually reach")
    return Prior(guess_speed("cuda", of.gpu, of.work.compute_dtype), f"usual shares of {of.gpu.id}'s data sheet")
