"""Draws docs/images/speeds.png: TPOT, throughput and TTFT that were predicted for published servers, against measured.

    python tools/draw_speeds.py                 # --out FILE writes it elsewhere

Rows and scores are those of ``score_published_speeds.py``. Rows that were known while the step model was built have one
colour, those that were kept back until it was scored on them another; hollow: held back by something that no
row states (published_speeds/hindered.py). The band is 25 % either way.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("Agg")

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from kvplan.catalog.devices.measured import load_measured  # noqa: E402
from kvplan.reports.looks import BLUE, VERMILION  # noqa: E402
from published_speeds.hindered import hindered_rows  # noqa: E402
from published_speeds.rows import read_rows  # noqa: E402
from published_speeds.scores import RowScore, score_row  # noqa: E402

PICTURE: Final = ROOT / "docs" / "images" / "speeds.png"
_KNOWN: Final = "a"
_LABELS: Final = {"tpot": "TPOT, ms", "throughput": "output tokens/s", "ttft": "TTFT, ms"}


def draw(scores: Sequence[RowScore], path: Path) -> None:
    """A panel for each figure."""
    hindered = hindered_rows(score.row for score in scores)
    figure, panels = pyplot.subplots(1, len(_LABELS), figsize=(13, 4.6), layout="constrained")
    for axes, (name, label) in zip(panels, _LABELS.items(), strict=True):
        for kind, colour, is_known in (("known", BLUE, True), ("kept back when scored", VERMILION, False)):
            rows = [each for each in scores if name in each.figures and (each.row.text["seen"] == _KNOWN) == is_known]
            _scatter(axes, rows, name, f"{kind} ({len(rows)})", colour, hindered)
        _finish(axes, label)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def _scatter(
    axes: Axes, scores: Sequence[RowScore], name: str, label: str, colour: str, hindered: Mapping[str, object]
) -> None:
    for is_hindered, face in ((False, colour), (True, "none")):
        pairs = [score.figures[name] for score in scores if (score.row.id in hindered) == is_hindered]
        measured, predicted = [pair.measured for pair in pairs], [pair.predicted.middle for pair in pairs]
        alpha = 1.0 if is_hindered else 0.5
        axes.scatter(measured, predicted, s=18, facecolors=face, edgecolors=colour, linewidths=0.8, alpha=alpha)
    axes.scatter([], [], s=18, color=colour, label=label)


def _finish(axes: Axes, label: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=f"{label}, measured", ylabel=f"{label}, predicted")
    low = min(axes.get_xlim()[0], axes.get_ylim()[0])
    high = max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot((low, high), (low, high), color="black", linewidth=0.8, zorder=0)
    axes.fill_between((low, high), (low / 1.25, high / 1.25), (low * 1.25, high * 1.25), color="black", alpha=0.08)
    axes.set(xlim=(low, high), ylim=(low, high))
    axes.legend(fontsize=8, loc="upper left", frameon=False)
    axes.grid(alpha=0.25)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=PICTURE, help="the picture (default docs/images/speeds.png)")
    arguments = parser.parse_args()
    measured = load_measured()
    rows = [row for row in read_rows() if not isinstance(row, str) and row.grade in "AB"]
    results = [score_row(row, measured) for row in rows]
    scores = [result for result in results if not isinstance(result, str)]
    draw(scores, arguments.out)
    print(f"{len(scores)} servers: {arguments.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
