"""Series of published rows that differ in the number of GPUs alone, each beside what is predicted for it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass

from kvplan.catalog.devices.measured import MeasuredProfiles
from published_speeds.rows import PUBLISHED, PublishedRow, read_rows
from published_speeds.scores import RowScore, score_row


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Output tokens per second of all GPUs."""

    num_gpus: int
    layout: str
    measured: float
    predicted: float


@dataclass(frozen=True, slots=True)
class Series:
    """``points``: by number of GPUs, two at least."""

    source: str
    title: str
    points: tuple[SeriesPoint, ...]

    @property
    def error(self) -> float:
        """Of the growth from the fewest GPUs to the most: predicted over measured, less one."""
        first, last = self.points[0], self.points[-1]
        return (last.predicted / first.predicted) / (last.measured / first.measured) - 1


def published_series(measured: MeasuredProfiles) -> list[Series]:
    """All that the file has, of every grade."""
    alike: defaultdict[tuple[str, str], dict[int, PublishedRow]] = defaultdict(dict)
    for row in read_rows(PUBLISHED):
        if isinstance(row, PublishedRow) and row.measured.output_throughput is not None and _may_scale(row):
            alike[row.source, _title(row)].setdefault(row.num_gpus, row)
    found = []
    for (source, title), rows in sorted(alike.items()):
        if len(rows) > 1:
            points = [_point(rows[number], measured) for number in sorted(rows)]
            kept = tuple(point for point in points if point is not None)
            found += [Series(source, title, kept)] if len(kept) > 1 else []
    return found


def _point(row: PublishedRow, measured: MeasuredProfiles) -> SeriesPoint | None:
    """None where it cannot be predicted."""
    score = score_row(row, measured)
    if not isinstance(score, RowScore) or "throughput" not in score.figures:
        return None
    figure = score.figures["throughput"]
    return SeriesPoint(row.num_gpus, _layout(row), figure.measured, figure.predicted.middle)


def _may_scale(row: PublishedRow) -> bool:
    """Whether the load asks for more than one GPU gives: at low rates there is nothing to grow."""
    return row.request_rate is None or row.request_rate >= _SATURATING


_SATURATING = 32


def _title(row: PublishedRow) -> str:
    text = row.text
    load = f"{text['request_rate']}/s" if row.request_rate else f"{row.max_concurrency or row.num_prompts} at once"
    lengths = "chats" if "sharegpt" in text["prefix_cache_or_random"] else f"{text['input_len']}/{text['output_len']}"
    form = f" {text['quantization'].split()[0]}" if text["quantization"] else ""
    return f"{text['model'].rsplit('/')[-1]}{form}, {text['gpu']}, {text['engine']}, {lengths}, {load}"


def _layout(row: PublishedRow) -> str:
    parts = {"tp": row.tensor_parallel_size, "pp": row.pipeline_parallel_size, "dp": row.data_parallel_size}
    return ", ".join(f"{name} {size}" for name, size in parts.items() if size > 1) or "one"


def median_error(series: list[Series]) -> float:
    """Of |error|."""
    return statistics.median(abs(each.error) for each in series)
