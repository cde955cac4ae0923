"""What all pictures share: size, type, the finding as the title, what was held fixed as the footer, and the PNG."""

from __future__ import annotations

import io
import logging
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kvplan.reports.wording import axis_title, exclusion_phrase, run_phrase, setting, short_number, shortened_phrase
from kvplan.runs.storage.reader import Run

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

DOTS_PER_INCH: Final = 130
# The width of a phone, at the page's type size, and the dots that its screen has for an inch of that.
NARROW_INCHES: Final = 3.5
NARROW_DOTS_PER_INCH: Final = 162
# Room for tick labels and an axis label.
_BELOW_AXES_INCHES: Final = 0.5
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

    dots = NARROW_DOTS_PER_INCH if width_inches <= NARROW_INCHES else DOTS_PER_INCH
    return Figure(figsize=(width_inches, height_inches), dpi=dots, layout="constrained")


def is_narrow(drawn: Figure | Axes) -> bool:
    """True for a phone's figure: panels stand below each other there, and legends have one column."""
    figure = drawn.get_figure(root=True)
    assert figure is not None, "axes belong to a figure"
    return bool(figure.get_figwidth() <= NARROW_INCHES)


def panels(figure: Figure, count: int) -> list[Axes]:
    """``count`` axes side by side, on a narrow figure below each other; each keeps about the height of the figure."""
    if not is_narrow(figure):
        return list(figure.subplots(1, count, squeeze=False).flat)
    figure.set_figheight(0.6 + 2.5 * count)
    return list(figure.subplots(count, 1, squeeze=False).flat)


def single_row(axes: Axes, name: str, value: object) -> None:
    """The vertical axis of a map that has one row, which is too low for a label beside it."""
    axes.set_ylabel("")
    axes.set_yticklabels([f"{name}\n{setting(value)}".replace("_", "_\n" if is_narrow(axes) else "_")])


def outer_legend(axes: Axes, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """A legend beside the axes, on a narrow figure below them: inside it would cover points."""
    from matplotlib.transforms import ScaledTranslation

    figure = axes.get_figure(root=True)
    assert figure is not None, "axes belong to a figure"
    place, corner = axes.transAxes, (1.01, 1.0)
    if is_narrow(figure):
        figure.set_figheight(figure.get_figheight() + 0.17 * sum(label.count("\n") + 1 for label in labels))
        place, corner = place + ScaledTranslation(0, -_BELOW_AXES_INCHES, figure.dpi_scale_trans), (-0.1, 0.0)
    axes.legend(list(handles), labels, loc="upper left", bbox_to_anchor=corner, bbox_transform=place, fontsize=8,
                handlelength=1.6, borderaxespad=0.2, labelcolor=INK)  # fmt: skip


def axis_text(axes: Axes, name: str) -> str:
    """The label of a setting's axis: with its unit, where there is room for it."""
    return name if is_narrow(axes) else axis_title(name)


def png_bytes(figure: Figure) -> bytes:
    """The figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def finish(
    figure: Figure, run: Run, finding: str, held: str = "", circumstances: str = "", *, compares_speeds: bool = False
) -> str:
    """Write the finding above the figure and the circumstances below it, those of the run if no others are given, with
    what was held fixed; returns the finding. compares_speeds: of ``run.comparable`` alone."""
    foot = (
        *(circumstances or run_phrase(run)).splitlines(),
        *(held and f"at {held}").splitlines(),
        exclusion_phrase(run),
        shortened_phrase(run) if compares_speeds else "",
    )
    return titled(figure, finding, foot)


def titled(figure: Figure, finding: str, foot: Iterable[str]) -> str:
    """Write the finding above the figure and the lines of ``foot`` below it; returns the finding."""
    width, type_size = figure.get_figwidth(), 11 if is_narrow(figure) else 12
    title = balanced(printable(finding), int(width * 104 / type_size))
    figure.suptitle(title, x=0.01, ha="left", fontsize=type_size, fontweight="bold")
    wrapped = "\n".join(textwrap.fill(printable(line), int(width * 15.2)) for line in foot if line)
    figure.supxlabel(wrapped, x=0.01, ha="left", fontsize=8, color=FAINT)
    return finding


# A number and what it counts or names stay on one line.
_BOUND: Final = re.compile(
    r"(?<=\d) (?=%|tokens/s|requests/s|ms\b|GiB|MiB|→)|(?<=_[a-z]{3}) (?=\d)|(?<=size|seqs) (?=\d)"
)


def balanced(text: str, width: int) -> str:
    """Wrap into as few lines as ``width`` allows, of about equal length, so that no word is alone on the last one."""
    text = _BOUND.sub("\N{NO-BREAK SPACE}", text)
    lines = [textwrap.wrap(text, w, break_long_words=False) for w in range(max(1, width // 2), width + 1)]
    # The narrowest of those that need no more lines than the widest.
    return "\n".join(next(found for found in lines if len(found) == len(lines[-1])))


def printable(text: str) -> str:
    """Characters that the plots' font may lack become '?', because a missing glyph would be an empty box."""
    return "".join(c if c.isprintable() and (ord(c) < 0x250 or c in "–×·→≥≤") else "?" for c in text)


def setting_axis(axes: Axes, name: str, places: Sequence[float]) -> None:
    """The axis of a setting, labelled at the measured places: shares to scale, counts and tokens in powers of two."""
    ticks = sorted(set(places))
    low, high = ticks[0], ticks[-1]
    if name == "gpu_memory_utilization":
        margin = 0.06 * (high - low) or 0.05
        axes.set_xlim(low - margin, high + margin)
        _plain_ticks(axes, _apart(ticks, (high - low) / _most_ticks(axes)))
        axes.set_xlabel(axis_text(axes, name))
        return
    axes.set_xscale("log", base=2)
    axes.set_xlim(low / 1.25, high * 1.25)
    _plain_ticks(axes, _thinned(ticks, high / low if low else 1, _most_ticks(axes)))
    axes.set_xlabel(f"{name} (log scale)")


def _most_ticks(axes: Axes) -> int:
    """Return as many labels as fit on one line."""
    place = axes.get_subplotspec()
    return 7 if is_narrow(axes) else 14 // (place.get_gridspec().ncols if place else 1)


def _apart(places: list[float], step: float) -> list[float]:
    """All places that are at least a step from the last one kept."""
    kept = places[:1]
    for place in places[1:]:
        if place >= kept[-1] + 0.999 * step:
            kept.append(place)
    return kept


def _thinned(places: list[float], ratio: float, most: int) -> list[float]:
    """All places, or if there are more than fit on one line of labels, those that are at least one step apart."""
    smallest_step = max(1.2, ratio ** (1 / most))
    kept = places[:1]
    for place in places[1:]:
        if place >= kept[-1] * smallest_step:
            kept.append(place)
    return kept


def _plain_ticks(axes: Axes, places: list[float]) -> None:
    axes.set_xticks(places, [setting(place) for place in places])
    axes.set_xticks([], minor=True)


def from_zero(axes: Axes, highest: float) -> None:
    """A linear axis from 0 with some space above; thousands with commas."""
    axes.set_ylim(0, highest * 1.12 if highest > 0 else 1)
    axes.yaxis.set_major_formatter(thousands())


def thousands() -> FuncFormatter:
    """Tick labels as plain numbers with commas."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: short_number(value))
