"""Writes what ``kvplan cache`` draws: the curves as a PNG, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kvplan.errors import KvplanError
from kvplan.fleet.tiers.question import CacheAnswer, LayoutAnswer
from kvplan.fleet.tiers.settings_lines import setting_lines
from kvplan.fleet.tiers.words import further_sentences, layout_name, replicas_text, size_text, verdict_sentence
from kvplan.fleet.tiers.worth import TierWorth
from kvplan.reports.html.rendering import render
from kvplan.reports.html.tables import Cell, Heading, Table
from kvplan.reports.pictures import Picture, draw_picture
from kvplan.reports.plots import caches
from kvplan.reports.plots.canvas import drawing
from kvplan.runs.storage.files import write_whole
from kvplan.units import plural
from kvplan.workload.files import span_text


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
