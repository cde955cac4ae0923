"""Hits over GiB of host memory, a line for each layout and KV format, with Belady's bound and the GPUs' own cache."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from kvplan.fleet.tiers.question import CacheAnswer, LayoutAnswer
from kvplan.fleet.tiers.words import layout_name, size_text
from kvplan.reports.looks import BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from kvplan.reports.plots.canvas import FAINT, balanced, is_narrow, outer_legend, printable
from kvplan.units import GIB
from kvplan.workload.files import span_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY_BLUE)


def draw(answer: CacheAnswer, figure: Figure) -> str:
    """Return the finding."""
    axes = figure.subplots()
    for layout, colour in zip(answer.layouts, _COLOURS, strict=False):
        _line(axes, layout, colour, answer)
    _scale(axes, answer, 4 if is_narrow(figure) else 9)
    handles, labels = axes.get_legend_handles_labels()
    outer_legend(axes, handles, labels)
    finding = _finding(answer)
    width, size = figure.get_figwidth(), 11 if is_narrow(figure) else 12
    title = balanced(printable(finding), int(width * 104 / size))
    figure.suptitle(title, x=0.01, ha="left", fontsize=size, fontweight="bold")
    over = f" over {span_text(answer.seconds)}" if answer.seconds else ""
    foot = (
        f"{answer.model} · {answer.trace}: {answer.num_requests:,} requests{over}, "
        f"{answer.num_prompt_tokens:,} prompt tokens · vLLM {answer.release}'s blocks, one request after the other"
    )
    foot = "\n".join(textwrap.wrap(printable(foot), int(width * 15.2)))
    figure.supxlabel(foot, x=0.01, ha="left", fontsize=8, color=FAINT)
    return finding


def _line(axes: Axes, layout: LayoutAnswer, colour: str, answer: CacheAnswer) -> None:
    gib = [tier.size_bytes / GIB for tier in layout.tiers]
    name = layout_name(layout).replace(", ", "\n")
    found = [100 * layout.share(tier.num_tokens) for tier in layout.tiers]
    axes.plot(gib, found, "-", color=colour, label=name)
    axes.plot(gib, [100 * tier.best_share for tier in layout.tiers], "--", color=colour, linewidth=1, alpha=0.7)
    own = 100 * layout.share(layout.in_pool.num_tokens)
    axes.plot([layout.in_pool.size_bytes / GIB], [own], "s", color=colour, markersize=5)
    asked = layout.asked
    word = "proposed" if answer.question.host_bytes is None else "asked"
    axes.plot([asked.size_bytes / GIB], [100 * layout.share(asked.num_tokens)], "o", color=colour,
              label=f"{size_text(asked.size_bytes)} {word}")  # fmt: skip


def _scale(axes: Axes, answer: CacheAnswer, most_ticks: int) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.plot([], [], "--", color=FAINT, linewidth=1, label="the most possible\n(Belady)")
    axes.plot([], [], "s", color=FAINT, markersize=5, label="the GPUs' own\ncache")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=most_ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.set_xlabel("host memory" + (" shared by all replicas" if answer.question.split == "shared" else " a replica"))
    axes.set_ylabel("prompt tokens found (%)")
    axes.set_ylim(bottom=0)


def _tick(gib: float) -> str:
    return size_text(round(gib * GIB)) if gib >= 1 else f"{gib:g} GiB"


def _finding(answer: CacheAnswer) -> str:
    best = answer.layouts[0]
    before, after = (100 * best.share(each.num_tokens) for each in (best.in_pool, best.asked))
    size = size_text(best.asked.size_bytes)
    return f"{size} of host memory find {after:.1f} % of prompt tokens, the GPUs {before:.1f} %"
