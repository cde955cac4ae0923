"""The list of pictures, and how one is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from kvplan.reports.comparison import Comparison
from kvplan.reports.plots import (
    block_size,
    fleet,
    latency,
    memory,
    occupancy,
    outcomes,
    pareto,
    predictions,
    requests,
    slo,
    throughput,
)
from kvplan.reports.plots import comparison as comparison_plot
from kvplan.reports.plots import side_by_side as side_by_side_plot
from kvplan.reports.plots.canvas import NARROW_INCHES, drawing, new_figure, png_bytes
from kvplan.reports.side_by_side import SideBySide
from kvplan.runs.storage.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Makes the 10 pt type of a picture as large as the page's 16 px.
_PAGE_PIXELS_PER_INCH: Final = 108


@dataclass(frozen=True, slots=True)
class PictureKind:
    """One picture: file name without suffix, heading on the page, size in inches, and the function that draws it and
    returns its finding, or None where the run has nothing to show in it."""

    name: str
    heading: str
    width_inches: float
    height_inches: float
    draw: Callable[[Run, Figure], str | None]


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn picture. ``finding`` is its title, and the text for those who cannot see it; ``width_px`` is the width at
    which its type is as large as the page's. ``narrow_png``: the same for a phone, None where that was not asked for.
    """

    name: str
    heading: str
    finding: str
    png: bytes
    width_px: int
    narrow_png: bytes | None = None


PICTURES: Final = (
    PictureKind("outcomes", "Outcomes and boundaries", 8.0, 4.6, outcomes.draw),
    PictureKind("throughput", "Throughput", 8.0, 4.6, throughput.draw),
    PictureKind("latency", "Latency", 8.0, 4.2, latency.draw),
    PictureKind("requests", "Single requests", 9.6, 4.4, requests.draw),
    PictureKind("pareto", "Per-user speed vs. total throughput", 8.0, 4.6, pareto.draw),
    PictureKind("occupancy", "KV pool over time", 8.6, 5.6, occupancy.draw),
    PictureKind("predicted_vs_measured", "Predicted vs. measured", 9.6, 7.4, predictions.draw),
    PictureKind("memory", "Memory", 8.0, 4.0, memory.draw),
    PictureKind("block_size", "Block size", 8.0, 4.2, block_size.draw),
)

SEARCH_PICTURE: Final = PictureKind("slo", "Highest load within the SLO", 8.6, 4.4, slo.draw)


def draw_pictures(run: Run, *, with_narrow: bool = False) -> list[Picture]:
    """All pictures of a run that would show something, in the page's order. with_narrow: for a page, which has another
    drawing of each for phones."""
    with drawing():
        drawn = [_draw_kind(kind, run, with_narrow) for kind in (SEARCH_PICTURE, *PICTURES)]
    return [picture for picture in drawn if picture is not None]


def _draw_kind(kind: PictureKind, run: Run, with_narrow: bool) -> Picture | None:
    size_inches = (kind.width_inches, kind.height_inches)
    return draw_picture(kind.name, kind.heading, partial(kind.draw, run), size_inches, with_narrow)


def draw_comparison(comparison: Comparison, *, with_narrow: bool = False) -> Picture | None:
    """The one picture of two runs; None where no setting was served in both."""
    with drawing():
        return draw_picture(
            "comparison", "Both runs", partial(comparison_plot.draw, comparison), (8.6, 4.6), with_narrow
        )


def draw_side_by_side(compared: SideBySide, *, with_narrow: bool = False) -> Picture | None:
    """The one picture of several runs; None where no setting that several tried was served."""
    with drawing():
        draw = partial(side_by_side_plot.draw, compared)
        return draw_picture("engines", "All runs", draw, (9.6, 4.2), with_narrow)


def draw_fleet(compared: SideBySide, *, with_narrow: bool = False) -> Picture | None:
    """The devices of several runs; None where they are of one kind, or none was served."""
    height_inches = 1.8 + 0.42 * len(compared.devices)
    with drawing():
        draw = partial(fleet.draw, compared)
        return draw_picture("fleet", "Devices", draw, (9.6, height_inches), with_narrow)


def draw_picture(
    name: str,
    heading: str,
    draw: Callable[[Figure], str | None],
    size_inches: tuple[float, float],
    with_narrow: bool,
) -> Picture | None:
    """Draw one picture within ``drawing()``; None where there is nothing to show."""
    figure = new_figure(*size_inches)
    finding = draw(figure)
    if finding is None:
        return None
    narrow = None
    if with_narrow:
        small = new_figure(NARROW_INCHES, min(size_inches[1], 4.2))
        draw(small)
        narrow = png_bytes(small)
    width_px = round(figure.get_figwidth() * _PAGE_PIXELS_PER_INCH)
    return Picture(name, heading, finding, png_bytes(figure), width_px, narrow)
