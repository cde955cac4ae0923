"""Causes of large errors, as far as somebody knows them (causes.csv), and the age of what was served."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path
from typing import Final

from published_speeds.scores import RowScore

_FILE: Final = Path(__file__).parent / "causes.csv"
_FIRST_OF_YEAR: Final = {
    "vLLM": (((0, 14), 2026), ((0, 7), 2025)),
    "SGLang": (((0, 5, 7), 2026), ((0, 4, 2), 2025)),
    "TensorRT-LLM": (((1, 2), 2026), ((0, 17), 2025)),
}
"""The first release of each year, the newest first."""
_EARLIER: Final = "2024 and earlier"


@cache
def known_causes() -> dict[tuple[str, str], str]:
    """By the name of a kind of server, and a figure."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["server"], figure): row["cause"] for row in rows for figure in row["figures"].split()}


def year_of_release(score: RowScore) -> str:
    """Of the row's engine."""
    found = re.search(r"\d+\.\d+(\.\d+)?", score.row.text["engine_version"])
    if found is None:
        return "not stated"
    release = tuple(map(int, found.group().split(".")))
    return next((str(year) for first, year in _FIRST_OF_YEAR[score.engine] if release >= first), _EARLIER)
