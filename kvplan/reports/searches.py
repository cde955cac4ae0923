"""The searches for the largest load within the SLO, read from the summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import pandas as pd

from kvplan.reports.wording import short_number
from kvplan.runs.storage.reader import Document, Run, objects_in

# What is searched over -> the label of its axis.
LOAD_LABELS: Final = {
    "max_concurrency": "max_concurrency (requests in flight)",
    "request_rate": "request_rate (requests/s)",
    "users": "users",
}

_SHARE_COLUMNS: Final = {"share": "share", "low": "share_low", "high": "share_high"}


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """One search, at one setting.

    points: a row per load tried, with value, num_runs, num_keeping, request_goodput and its lowest and highest run
    (goodput_low, goodput_high), and the share of requests within the SLO with its 95 % interval (share, share_low,
    share_high). keeps, misses: the largest load that keeps the SLO in most runs, and the smallest that does not.
    """

    variable: str
    settings: Document
    keeps: float | None
    misses: float | None
    sentence: str
    points: pd.DataFrame


def searches(run: Run) -> list[Search]:
    """All searches of the run; [] where none was made."""
    slo = run.summary.get("slo")
    listed = objects_in(slo.get("searches")) if isinstance(slo, dict) else []
    return [_search(entry) for entry in listed if entry.get("points") and entry.get("variable") in LOAD_LABELS]


def _search(entry: Document) -> Search:
    points = pd.json_normalize(cast(list[dict[str, object]], entry["points"]))
    points[["goodput_low", "goodput_high"]] = points["request_goodput_range"].tolist()
    within = {f"requests_within.{part}": name for part, name in _SHARE_COLUMNS.items()}
    return Search(
        variable=str(entry["variable"]),
        settings=cast(Document, entry["settings"]),
        keeps=cast(float | None, entry.get("keeps")),
        misses=cast(float | None, entry.get("misses")),
        sentence=str(entry.get("sentence") or ""),
        points=points.rename(columns=within),
    )


def objectives_phrase(run: Run) -> str:
    """The SLO as ``ttft 1,500 ms and tpot 60 ms``."""
    slo = cast(Mapping[str, Mapping[str, float]], run.summary["slo"])
    return " and ".join(f"{name} {short_number(bound)} ms" for name, bound in slo["objectives_ms"].items())
