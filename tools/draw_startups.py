"""Draws docs/images/startups.png: KV tokens that were predicted for published start-ups, against what vLLM printed.

    python tools/draw_startups.py                 # --out FILE writes it elsewhere

Rows and scores are those of ``score_vllm_startups.py``. Rows of grade A are predicted end to end, those of grade B from
the memory that the log prints.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from kvplan.reports.looks import BLUE, GREEN, GREY, PURPLE, VERMILION
from score_vllm_startups import DATA, ROOT, RowScore, score_rows  # finds kvplan beside tools/, where none is installed
from startup_rows import Row, load_models, number, read_rows

PICTURE: Final = ROOT / "docs" / "images" / "startups.png"
_DEFAULT_BLOCK_SIZE: Final = 16
_LINEAR_PERCENT: Final = 0.1  # errors below this are drawn to scale, larger ones logarithmically
_MARGIN: Final = 2.0  # so that the largest error does not lie on the edge
_PERCENT_TICKS: Final = (-100, -10, -1, -0.1, 0, 0.1, 1, 10, 100)


@dataclass(frozen=True, slots=True)
class Kind:
    """Start-ups that are drawn alike."""

    label: str
    colour: str
    marker: str


CAMPAIGN: Final = Kind("campaign that states every setting", BLUE, "o")
OTHERS: Final = Kind("other sources", VERMILION, "s")
LATER: Final = Kind("collected later, most not looked into", PURPLE, "D")
FROM_MEMORY: Final = Kind("from the printed memory on", GREEN, "^")
MODIFIED: Final = Kind("builds with code of their own", GREY, "x")


@dataclass(frozen=True, slots=True)
class Point:
    """One start-up. ``deviation``: predicted tokens over printed ones, less one."""

    kind: Kind
    printed_tokens: float
    deviation: float


def points(rows: Sequence[Row], scores: Sequence[RowScore]) -> list[Point]:
    """The start-ups whose tokens were printed and predicted."""
    return [
        Point(_kind(score), _printed_tokens(row), score.token_deviation)
        for row, score in zip(rows, scores, strict=True)
        if score.token_deviation is not None
    ]


def _kind(score: RowScore) -> Kind:
    if score.modified:
        return MODIFIED
    if score.grade == "B":
        return FROM_MEMORY
    if score.newest:
        return LATER
    return CAMPAIGN if score.campaign else OTHERS


def _printed_tokens(row: Row) -> float:
    """As the log has them; early releases print blocks alone."""
    tokens, blocks = number(row["kv_cache_tokens"]), number(row["num_gpu_blocks"])
    return tokens if tokens else (blocks or 0.0) * (number(row["block_size"]) or _DEFAULT_BLOCK_SIZE)


def draw(drawn: Sequence[Point], path: Path) -> None:
    figure, (both, errors) = pyplot.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for kind in (CAMPAIGN, OTHERS, LATER, FROM_MEMORY, MODIFIED):
        of_kind = [point for point in drawn if point.kind == kind]
        printed = [point.printed_tokens for point in of_kind]
        style = {"marker": kind.marker, "color": kind.colour, "s": 26, "alpha": 0.75, "linewidths": 1.2}
        label = f"{kind.label} ({len(of_kind)})"
        both.scatter(printed, [point.printed_tokens * (1 + point.deviation) for point in of_kind], label=label, **style)
        errors.scatter(printed, [100 * point.deviation for point in of_kind], **style)
    _finish_tokens(both)
    _finish_errors(errors)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def _finish_tokens(axes: Axes) -> None:
    axes.set(xscale="log", yscale="log", xlabel="KV tokens that vLLM printed", ylabel="KV tokens that were predicted")
    low, high = axes.get_xlim()
    axes.plot((low, high), (low, high), color="black", linewidth=0.8, zorder=0)
    axes.set(xlim=(low, high), ylim=(low, high))
    axes.legend(fontsize=8, loc="upper left", frameon=False)
    axes.grid(alpha=0.25)


def _finish_errors(axes: Axes) -> None:
    axes.set(xscale="log", xlabel="KV tokens that vLLM printed", ylabel="predicted / printed - 1")
    axes.set_yscale("symlog", linthresh=_LINEAR_PERCENT)
    limit = _MARGIN * max(abs(edge) for edge in axes.get_ylim())
    axes.set_ylim(-limit, limit)
    axes.set_yticks([tick for tick in _PERCENT_TICKS if abs(tick) <= limit])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda percent, _: f"{percent:+g} %" if percent else "0"))
    axes.axhline(0, color="black", linewidth=0.8, zorder=0)
    axes.grid(alpha=0.25)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=PICTURE, help="the picture (default docs/images/startups.png)")
    arguments = parser.parse_args()
    rows = read_rows(DATA / "vllm_startups.csv")
    drawn = points(rows, score_rows(rows, load_models(DATA / "vllm_startup_models.json")))
    draw(drawn, arguments.out)
    print(f"{len(drawn)} start-ups: {arguments.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
