"""One measured profile: what a device reached with an engine and a format, and where that comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvplan.units import plural

Origin = Literal["measured", "calibrated", "kernels", "scaled", "roofline"]
"""measured: fitted to this model and dtype on this device; calibrated: to another on it; kernels: to measured kernels
of this device; scaled: of one of its kind; roofline: by data sheet. The first is trusted most."""
Source = Literal["sweep", "kernels", "scaled"]
"""What a profile was fitted to: whole runs of an engine, or tables of its kernels, or those of a GPU of its kind."""


@dataclass(frozen=True, slots=True)
class HeldOutError:
    """|predicted / measured - 1| over settings that the fit did not see, in percent.

    ``within_pct``: what a further setting stays within 9 times in 10, which is more than ``p90_pct`` where few were
    scored. Profiles of before 2026-11-22 do not have it.
    """

    median_pct: float
    p90_pct: float
    within_pct: float | None = None

    @property
    def range_pct(self) -> float:
        """Half of the range around a prediction, in percent of what is measured."""
        return self.p90_pct if self.within_pct is None else self.within_pct


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """A device's coefficients with where they come from. ``errors``: output_throughput, tpot and ttft.

    ``num_cores`` of a CPU, else None. ``model_ids`` are the models of the rows it was fitted to. ``experts``,
    ``latent`` and ``links`` are further coefficients (``estimate.speed.steps.rank_step``), None where not fitted.
    engine_version: of the engine whose kernels were measured; None for sweeps. note: where those of kernels come from,
    in a few words; ``details``: from which data, and how well they fit.
    """

    path: Path
    device_kind: str
    device_name: str
    num_cores: int | None
    dtype: str
    engine: str
    created: str
    model_ids: tuple[str, ...]
    num_rows: int
    coefficients: Mapping[str, float]
    errors: Mapping[str, HeldOutError]
    source: Source = "sweep"
    experts: Mapping[str, float] | None = None
    latent: Mapping[str, float] | None = None
    links: Mapping[str, Any] | None = None
    note: str | None = None
    details: str | None = None
    engine_version: str | None = None

    @property
    def speeds(self) -> Mapping[str, Any]:
        """All coefficients, as ``KernelSpeed.from_json`` takes them."""
        groups = {"experts": self.experts, "latent": self.latent, "links": self.links}
        return {"coefficients": self.coefficients} | {name: group for name, group in groups.items() if group}

    def origin_for(self, model_id: str, dtype: str) -> Origin:
        if self.source != "sweep":
            return self.source
        return "measured" if model_id in self.model_ids and dtype == self.dtype else "calibrated"

    @property
    def short_text(self) -> str:
        """``calibrated on AMD EPYC, 2 cores``"""
        if self.note is not None:
            return self.note
        return f"calibrated on {self.device_name}" + (f", {plural(self.num_cores, 'core')}" if self.num_cores else "")

    def as_text(self) -> str:
        """``calibrated on AMD EPYC, 2 cores (2026-11-21, 30 rows of gpt2); held-out error ...``"""
        if self.note is not None:
            return self.note if self.details is None else f"{self.note} ({self.details})"
        models = ", ".join(model.rsplit("/", 1)[-1] for model in self.model_ids)
        text = f"{self.short_text} ({self.created}, {plural(self.num_rows, 'row')} of {models})"
        words = {"output_throughput": "throughput", "tpot": "TPOT", "ttft": "TTFT"}
        parts = [f"{word} {self.errors[name].median_pct:.1f} %" for name, word in words.items() if name in self.errors]
        return f"{text}; median held-out error: {', '.join(parts)}" if parts else text
