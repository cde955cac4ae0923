"""The fitted coefficients in units for people, beside the peaks of the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from kvplan.calibrate.peaks import PeakShare
from kvplan.estimate.speed.steps.step_time import Speed

_LABELS: Final = {
    "step_seconds": "overhead per step",
    "layer_seconds": "overhead per step and layer",
    "sequence_seconds": "overhead per step and sequence",
    "bandwidth": "weights and activations",
    "flops": "matrix products",
    "kv_bandwidth": "K and V",
    "attention_flops": "attention",
    "sharpness": "overlap exponent",
    "row_step": "rows of a product, multiple of",
}


@dataclass(frozen=True, slots=True)
class ReadableCoefficient:
    """One coefficient: ``value`` is in ``unit``; share_of_peak is None for one that has no peak."""

    label: str
    value: str
    unit: str
    share_of_peak: PeakShare | None


def readable_coefficients(speed: Speed, shares: Sequence[PeakShare]) -> list[ReadableCoefficient]:
    """All coefficients, in the order of ``Speed``. ``shares`` as ``shares_of_peaks`` returns them."""
    by_name = {share.name: share for share in shares}
    return [
        ReadableCoefficient(_LABELS[name], *_value_and_unit(name, value), by_name.get(name))
        for name, value in asdict(speed).items()
    ]


def _value_and_unit(name: str, value: float) -> tuple[str, str]:
    if name.endswith("seconds"):
        return f"{1e6 * value:,.1f}", "us"
    if name.endswith("bandwidth"):
        return f"{value / 1e9:,.2f}", "GB/s"
    if name.endswith("flops"):
        return f"{value / 1e9:,.1f}", "GFLOP/s"
    if name == "row_step":
        return f"{value:g}", "tokens"
    return f"{value:g}", "no overlap" if value == 1 else "memory and compute overlap"
