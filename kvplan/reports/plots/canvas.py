"""What all pictures share: size, type, the finding as the title, what was held fixed as the footer, and the PNG."""

from __future__ import annotations

import io
import logging
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kvplan.reports.wording import exclusion_phrase, run_phrase, short_number
from kvplan.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

DOTS_PER_INCH: Final = 130
INK: Final = "#222222"
FAINT: Final = "#5F5F5F"

# Any, because matplotlib types its settings one by one.
_STYLE: Final[Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#E4E4E4",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 2,
    "lines.markersize": 6,
    "hatch.linewidth": 0.6,
    # A "$" in a model's name is a dollar sign, not the start of a formula.
    "text.parse_math": False,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Our style whatever the user's matplotlibrc says, and matplotlib's own messages (font cache) kept off stderr."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        import matplotlib

        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_STYLE)
            yield
    finally:
        logger.setLevel(level)


def new_figure(width_inches: float = 8.0, height_inches: float = 4.6) -> Figure:
    """An empty figure that lays itself out; no global state, no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), dpi=DOTS_PER_INCH, layout="constrained")


def png_bytes(figure: Figure) -> bytes:
    """The figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def finish(figure: Figure, run: Run, finding: str, held: str = "") -> str:
    """Write the finding above the figure and the run's circumstances below it; returns the finding."""
    width = figure.get_figwidth()
    title = balanced(printable(finding), int(width * 8.7))
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    foot = "\n".join(
        textwrap.fill(printable(line), int(width * 15.2))
        for line in (run_phrase(run), held and f"at {held}", exclusion_phrase(run))
        if line
    )
    figure.supxlabel(foot, x=0.01, ha="left", fontsize=8, color=FAINT)
    return finding


def balanced(text: str, width: int) -> str:
    """As few lines as ``width`` allows, of about equal length, so that no word is alone on the last one."""
    text = text.replace(" %", "\N{NO-BREAK SPACE}%")
    num_lines = len(textwrap.wrap(text, width))
    narrowest = next(w for w in range(len(text) // num_lines, width + 1) if len(textwrap.wrap(text, w)) == num_lines)
    return textwrap.fill(text, narrowest)


def say(figure: Figure, run: Run, message: str) -> str:
    """A figure without data, smaller: the reason in words instead of empty axes."""
    figure.set_size_inches(8.0, 2.0)
    figure.text(0.5, 0.5, textwrap.fill(printable(message), 60), ha="center", va="center", fontsize=13, color=FAINT)
    foot = textwrap.fill(printable(run_phrase(run)), int(figure.get_figwidth() * 15.2))
    figure.text(0.01, 0.02, foot, ha="left", va="bottom", fontsize=8, color=FAINT)
    return message


def printable(text: str) -> str:
    """Characters that the plots' font may lack become '?', because a missing glyph would be an empty box."""
    return "".join(c if c.isprintable() and (ord(c) < 0x250 or c in "–×·→≥≤") else "?" for c in text)


def log2_axis(axes: Axes, places: Sequence[float]) -> None:
    """A base-2 axis with plain numbers at the measured places, thinned where they would touch."""
    axes.set_xscale("log", base=2)
    low, high = min(places), max(places)
    axes.set_xlim(low / 1.25, high * 1.25)
    _plain_ticks(axes, _thinned(sorted(set(places)), high / low if low else 1))


def _thinned(places: list[float], ratio: float) -> list[float]:
    """All places, or if there are more than fit on one line of labels, those that are at least one step apart."""
    smallest_step = max(1.2, ratio ** (1 / 14))
    kept = places[:1]
    for place in places[1:]:
        if place >= kept[-1] * smallest_step:
            kept.append(place)
    return kept


def _plain_ticks(axes: Axes, places: list[float]) -> None:
    axes.set_xticks(places, [short_number(place) for place in places])
    axes.set_xticks([], minor=True)


def from_zero(axes: Axes, highest: float) -> None:
    """A linear axis from 0 with some space above; thousands with commas."""
    axes.set_ylim(0, highest * 1.12 if highest > 0 else 1)
    axes.yaxis.set_major_formatter(thousands())


def thousands() -> FuncFormatter:
    """Tick labels as plain numbers with commas."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: short_number(value))
