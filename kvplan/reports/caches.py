"""Writes what ``kvplan cache`` draws: the curves as a PNG, and the page."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from kvplan.errors import KvplanError
from kvplan.fleet.tiers.question import CacheAnswer
from kvplan.reports.html.caches_page import caches_page
from kvplan.reports.pictures import draw_picture
from kvplan.reports.plots import caches
from kvplan.reports.plots.canvas import drawing
from kvplan.runs.storage.files import write_whole


def write_cache_report(answer: CacheAnswer, plot: Path | None, page: Path | None) -> None:
    """Write the picture, the page or both. KvplanError where a file cannot be written."""
    with drawing():
        picture = draw_picture("caches", "Hits over GiB", partial(caches.draw, answer), (8.6, 4.6), page is not None)
    assert picture is not None, "the curves always show something"
    if plot is not None:
        if plot.suffix.lower() != ".png":
            raise KvplanError(f"Pictures of caches are PNG files: {plot}.", hint="name a .png file")
        write_whole(plot, picture.png)
    if page is not None:
        write_whole(page, caches_page(answer, picture))
