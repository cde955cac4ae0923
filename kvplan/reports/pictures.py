"""The list of pictures, and how one is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvplan.reports.comparison import Comparison
from kvplan.reports.plots import block_size, latency, memory, occupancy, outcomes, pareto, predictions, slo, throughput
from kvplan.reports.plots import comparison as comparison_plot
from kvplan.reports.plots.canvas import drawing, new_figure, png_bytes
from kvplan.reports.searches import searches
from kvplan.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Makes the 10 pt type of a picture as large as the page's 16 px.
_PAGE_PIXELS_PER_INCH: Final = 108


@dataclass(frozen=True, slots=True)
class PictureKind:
    """One picture: file name without suffix, heading on the page, size in inches, and the function that draws it and
    returns its finding."""

    name: str
    heading: str
    width_inches: float
    height_inches: float
    draw: Callable[[Run, Figure], str]


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn picture. ``finding`` is its title, and the text for those who cannot see it; ``width_px`` is the width at
    which its type is as large as the page's."""

    name: str
    heading: str
    finding: str
    png: bytes
    width_px: int


PICTURES: Final = (
    PictureKind("outcomes", "Outcomes by utilization and context", 8.0, 4.6, outcomes.draw),
    PictureKind("throughput", "Throughput", 8.0, 4.6, throughput.draw),
    PictureKind("latency", "Latency", 8.0, 4.2, latency.draw),
    PictureKind("pareto", "Per-user speed vs. total throughput", 8.0, 4.6, pareto.draw),
    PictureKind("occupancy", "KV pool over time", 8.6, 5.6, occupancy.draw),
    PictureKind("predicted_vs_measured", "Predicted vs. measured", 9.6, 7.4, predictions.draw),
    PictureKind("memory", "Memory", 8.0, 4.0, memory.draw),
    PictureKind("block_size", "Block size", 8.0, 4.2, block_size.draw),
)

SEARCH_PICTURE: Final = PictureKind("slo", "Highest load within the SLO", 8.6, 4.4, slo.draw)


def draw_picture(kind: PictureKind, run: Run) -> Picture:
    """Draw one. Call inside ``canvas.drawing()``."""
    figure = new_figure(kind.width_inches, kind.height_inches)
    return _finished(kind.name, kind.heading, kind.draw(run, figure), figure)


def draw_pictures(run: Run) -> list[Picture]:
    """All pictures of a run, in the page's order; the one of a search for the largest load only if one was made."""
    kinds = (SEARCH_PICTURE, *PICTURES) if searches(run) else PICTURES
    with drawing():
        return [draw_picture(kind, run) for kind in kinds]


def draw_comparison(comparison: Comparison) -> Picture:
    """The one picture of two runs."""
    with drawing():
        figure = new_figure(8.6, 4.6)
        return _finished("comparison", "Both runs", comparison_plot.draw(comparison, figure), figure)


def _finished(name: str, heading: str, finding: str, figure: Figure) -> Picture:
    return Picture(name, heading, finding, png_bytes(figure), round(figure.get_figwidth() * _PAGE_PIXELS_PER_INCH))
