"""The release of a row that names none but a day: the newest one then, as ``:latest`` images and ``pip install`` give.

Spans of days in which a release was the newest in the package registry, looked up there on 2026-11-29 for the days that
rows name; on the day of a release itself the one before counts. A month stands for all of its days. Where a span does
not hold the whole of what a row states, nothing is known, and the newest release of all is taken as before.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import date
from typing import Final

_NEWEST: Final = (
    ("vLLM", date(2025, 10, 1), date(2025, 11, 1), "0.11.0"),
    ("vLLM", date(2026, 1, 25), date(2026, 1, 29), "0.14.1"),
    ("vLLM", date(2026, 2, 27), date(2026, 3, 6), "0.16.0"),
    ("vLLM", date(2026, 4, 3), date(2026, 4, 4), "0.19.0"),
    ("vLLM", date(2026, 6, 3), date(2026, 6, 4), "0.22.0"),
    ("SGLang", date(2026, 2, 24), date(2026, 4, 5), "0.5.9"),
)


def newest_release(engine: str, day: str) -> str | None:
    """The newest release of ``engine`` on ``day`` ("2025-10", "2026-03-04", "20260129-034729"); None: not known."""
    found = re.match(r"(\d{4})-?(\d{2})(?:-?(\d{2}))?(?!\d)", day)
    if found is None:
        return None
    year, month = int(found.group(1)), int(found.group(2))
    if not 1 <= month <= 12:
        return None
    last_of_month = monthrange(year, month)[1]
    first, last = (int(found.group(3)),) * 2 if found.group(3) else (1, last_of_month)
    if not 1 <= first <= last_of_month:
        return None
    begin, end = date(year, month, first), date(year, month, last)
    spans = (release for name, since, until, release in _NEWEST if name == engine and since <= begin and end <= until)
    return next(spans, None)
