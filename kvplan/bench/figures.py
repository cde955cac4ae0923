"""The results of an experiment: figures of the baseline and of what is compared with it, and their ratio. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class BenchFigure:
    """One quantity, measured alternately on both sides.

    baseline, measured: medians of the samples. ratio: median over pairs of neighbouring samples, measured / baseline if
    ``higher_is_better`` and baseline / measured otherwise, so that more than 1 is a gain.
    """

    name: str
    unit: str
    higher_is_better: bool
    baseline: float
    measured: float
    ratio: float | None
    baseline_samples: tuple[float, ...]
    measured_samples: tuple[float, ...]

    @property
    def cut_pct(self) -> float | None:
        """Percent by which ``measured`` is below ``baseline``, as the median over neighbouring samples."""
        if self.ratio is None or self.higher_is_better:
            return None
        return 100 * (1 - 1 / self.ratio) if self.ratio else None


@dataclass(frozen=True, slots=True)
class Experiment:
    """A comparison. workload: what both sides ran, in words. notes: what a reader should know about the figures."""

    name: str
    title: str
    baseline: str
    measured: str
    workload: str
    figures: tuple[BenchFigure, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        record = asdict(self)
        for figure, entry in zip(self.figures, record["figures"], strict=True):
            entry["cut_pct"] = figure.cut_pct
        return record

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Experiment:
        figures = tuple(_figure(entry) for entry in record["figures"])
        return Experiment(**{**record, "figures": figures, "notes": tuple(record["notes"])})


def _figure(record: Mapping[str, Any]) -> BenchFigure:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
    }
    del values["cut_pct"]  # follows from the ratio
    return BenchFigure(**values)


def compare(
    name: str, unit: str, baseline: Sequence[float], measured: Sequence[float], *, higher_is_better: bool
) -> BenchFigure:
    """A figure from samples taken alternately: baseline, measured, baseline, measured, ..."""
    ratios = []
    for before, after in zip(baseline, measured, strict=True):
        better, worse = (after, before) if higher_is_better else (before, after)
        if worse:
            ratios.append(better / worse)
    return BenchFigure(
        name=name,
        unit=unit,
        higher_is_better=higher_is_better,
        baseline=median(baseline),
        measured=median(measured),
        ratio=median(ratios) if ratios else None,
        baseline_samples=tuple(baseline),
        measured_samples=tuple(measured),
    )
