"""Writes what ``kvplan cache`` draws: the curves as a PNG, and the page.

Hits over GiB of host memory: a line for each layout and KV format, Belady's bound and the GPUs' own cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.errors import KvplanError
from kvplan.fleet.tiers.question import CacheAnswer, LayoutAnswer
from kvplan.fleet.tiers.settings_lines import setting_lines
from kvplan.fleet.tiers.words import further_sentences, layout_name, replicas_text, size_text, verdict_sentence
from kvplan.fleet.tiers.worth import TierWorth
from kvplan.reports.html.rendering import render
from kvplan.reports.html.tables import Cell, Heading, Table
from kvplan.reports.looks import BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from kvplan.reports.pictures import Picture, draw_picture
from kvplan.reports.plots.canvas import FAINT, drawing, is_narrow, outer_legend, titled
from kvplan.runs.storage.files import write_whole
from kvplan.units import GIB, plural
from kvplan.workload.files import span_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY_BLUE)


def write_cache_report(answer: CacheAnswer, plot: Path | None, page: Path | None) -> None:
    """Write the picture, the page or both. KvplanError where a file cannot be written."""
    with drawing():
        picture = draw_picture("caches", "Hits over GiB", partial(draw, answer), (8.6, 4.6), page is not None)
    assert picture is not None, "the curves always show something"
    if plot is not None:
        if plot.suffix.lower() != ".png":
            raise KvplanError(f"Pictures of caches are PNG files: {plot}.", hint="name a .png file")
        write_whole(plot, picture.png)
    if page is not None:
        write_whole(page, caches_page(answer, picture))


def caches_page(answer: CacheAnswer, picture: Picture) -> str:
    """Return the whole page."""
    first = answer.layouts[0]
    is_shared = answer.question.split == "shared"
    over = f" over {span_text(answer.seconds)}" if answer.seconds else ""
    return render(
        "caches.html.j2",
        title=f"{answer.model}: a prefix cache for {answer.trace}",
        about=f"{plural(answer.num_requests, 'request')}{over} · {replicas_text(answer)} · vLLM {answer.release}",
        notes=answer.notes,
        verdicts=[f"{layout_name(layout)}: {verdict_sentence(answer, layout)}" for layout in answer.layouts],
        picture=picture,
        curves=[
            (layout_name(layout), _table(answer, layout), list(further_sentences(answer, layout)))
            for layout in answer.layouts
        ],
        settings_for=layout_name(first),
        settings=[
            (each.engine, "\n".join(each.lines), each.note)
            for each in setting_lines(first, answer.model, is_shared=is_shared)
        ],
    )


def _table(answer: CacheAnswer, layout: LayoutAnswer) -> Table:
    per = "s/h" if answer.seconds else "s"
    heads = (
        Heading("tier", is_text=True),
        Heading("hits", "%", "of prompt tokens, with the tiers above"),
        Heading("best", "%", "the most that any cache of the size finds (Belady)"),
        Heading("saved", per, "of prefill, against the GPUs' own cache alone"),
        Heading("load", per, "from host memory"),
        Heading("store", per, "to host memory, beside the engine's steps"),
        Heading("verdict", is_text=True),
    )
    return Table(layout_name(layout), heads, [_cells(answer, layout, tier) for tier in (layout.in_pool, *layout.tiers)])


def _cells(answer: CacheAnswer, layout: LayoutAnswer, tier: TierWorth) -> Sequence[Cell]:
    is_pool = tier is layout.in_pool
    seconds = [answer.per_hour(each) for each in (tier.saved_seconds, tier.load_seconds, tier.store_seconds)]
    name = f"{size_text(tier.size_bytes)} {'HBM' if is_pool else 'host'}"
    verdict = "the engine's own" if is_pool else tier.verdict
    shares = (100 * layout.share(tier.num_tokens), 100 * tier.best_share)
    return [
        Cell(name, tier.size_bytes, css="text"),
        *(Cell(f"{share:.1f}", share) for share in shares),
        *(Cell(f"{each:,.0f}", each) for each in seconds),
        Cell(verdict, verdict, css="text"),
    ]


def draw(answer: CacheAnswer, figure: Figure) -> str:
    """Return the finding."""
    axes = figure.subplots()
    for layout, colour in zip(answer.layouts, _COLOURS, strict=False):
        _line(axes, layout, colour, answer)
    _scale(axes, answer, 4 if is_narrow(figure) else 9)
    handles, labels = axes.get_legend_handles_labels()
    outer_legend(axes, handles, labels)
    over = f" over {span_text(answer.seconds)}" if answer.seconds else ""
    foot = (
        f"{answer.model} · {answer.trace}: {answer.num_requests:,} requests{over}, "
        f"{answer.num_prompt_tokens:,} prompt tokens · vLLM {answer.release}'s blocks, one request after the other"
    )
    return titled(figure, _finding(answer), (foot,))


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
