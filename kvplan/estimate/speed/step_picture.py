"""The terms of steps as stacked bars, for ``plan --plot`` and ``estimate --plot``. Callers import matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.errors import KvplanError
from kvplan.estimate.speed.queues import ExplainedStep
from kvplan.estimate.speed.steps.step_terms import term_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS: Final = {
    "launches": "#9a9a9a",
    "weights": "#4878a8",
    "kv_cache": "#55a868",
    "products": "#e1974c",
    "attention": "#b07aa1",
    "collectives": "#c44e52",
    "host": "#e8d174",
    "drafter": "#b07aa1",
}
WHOLE: Final = "whole step (terms overlap)"


def draw_steps(axes: Axes, names: Sequence[str], steps: Sequence[ExplainedStep]) -> None:
    """A bar for each step, its terms on each other, in milliseconds; a line across where the whole step ends.

    Weights are read while products are computed, so the line may be below the end of the bar.
    """
    places = range(len(steps))
    bottoms = [0.0] * len(steps)
    for term in term_names(step.terms for step in steps):
        heights = [1000 * getattr(step.terms, term) for step in steps]
        label, color = term.replace("_", " ").replace("kv", "KV"), _COLORS[term]
        axes.bar(places, heights, bottom=bottoms, label=label, color=color, edgecolor="#444444", linewidth=0.4)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    whole = [1000 * step.seconds for step in steps]
    starts, ends = [place - 0.46 for place in places], [place + 0.46 for place in places]
    axes.hlines(whole, starts, ends, color="#000000", linewidth=1.8, label=WHOLE)
    axes.set_xticks(places, names)
    axes.set_xlim(-0.6, max(len(names), 3) - 0.4)
    axes.set_ylim(0, 1.05 * max([*bottoms, *whole]))
    axes.set_ylabel("ms")


def save_picture(figure: Figure, path: Path) -> None:
    """KvplanError where the file cannot be written."""
    if not path.suffix:
        raise KvplanError(f"{path} does not say which kind of picture it is to be.", hint="name a .png file")
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise KvplanError(
            f"The picture cannot be written to {path}: {error.strerror or error}.",
            hint="name a file in a directory that is there and can be written to",
        ) from error
    except ValueError as error:
        raise KvplanError(f"Pictures cannot be written as {path.suffix}: {path}.", hint="name a .png file") from error
