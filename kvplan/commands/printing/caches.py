"""What ``kvplan cache`` prints: the verdict, the curve at a handful of sizes, what it rests on, settings to paste."""

from __future__ import annotations

from kvplan.commands.printing.render import print_csv, print_json, print_markdown, print_sentence, print_table, say
from kvplan.fleet.tiers.document import cache_document
from kvplan.fleet.tiers.question import CacheAnswer, LayoutAnswer
from kvplan.fleet.tiers.settings_lines import setting_lines
from kvplan.fleet.tiers.words import further_sentences, layout_name, replicas_text, size_text, verdict_sentence
from kvplan.fleet.tiers.worth import TierWorth


def print_cache(answer: CacheAnswer, form: str) -> None:
    """Print it as a table, JSON, CSV or Markdown."""
    if form == "json":
        print_json(cache_document(answer))
    elif form == "csv":
        print_csv(csv_rows(answer))
    else:
        _print_people(answer, as_markdown=form == "md")


def _print_people(answer: CacheAnswer, *, as_markdown: bool) -> None:
    for number, layout in enumerate(answer.layouts):
        if number:
            say()
        _print_layout(answer, layout, as_markdown=as_markdown)
    settings = setting_lines(answer.layouts[0], answer.model, is_shared=answer.question.split == "shared")
    if answer.layouts[0].asked.verdict != "harms":
        say()
        print_sentence(f"To paste, for {layout_name(answer.layouts[0])}:", indent="")
        for each in settings:
            say(f"  # {each.engine}{f': {each.note}' if each.note else ''}")
            for line in each.lines:
                say(f"  {line}")


def _print_layout(answer: CacheAnswer, layout: LayoutAnswer, *, as_markdown: bool) -> None:
    over = f", over {replicas_text(answer)}" if answer.question.num_replicas > 1 else ""
    print_sentence(f"{answer.model} on {layout_name(layout)}{over}: {verdict_sentence(answer, layout)}", indent="")
    say()
    per = "s/h" if answer.seconds else "s"
    head = ("tier", "hits %", "best %", f"saved {per}", f"load {per}", f"store {per}", "")
    rows = [_row(answer, layout, tier) for tier in (layout.in_pool, *layout.tiers)]
    if as_markdown:
        print_markdown(head, rows)
    else:
        print_table(None, head, rows, text_columns=(0, 6))
    say()
    for sentence in further_sentences(answer, layout):
        print_sentence(sentence)


def _row(answer: CacheAnswer, layout: LayoutAnswer, tier: TierWorth) -> tuple[str, ...]:
    is_pool = tier is layout.in_pool
    # What harms is proposed to nobody, and is the size that the sentence above advises against.
    proposed = "" if tier.verdict == "harms" else ", proposed"
    word = proposed if answer.question.host_bytes is None else ", asked"
    name = f"{size_text(tier.size_bytes)} {'HBM' if is_pool else 'host'}"
    seconds = [answer.per_hour(each) for each in (tier.saved_seconds, tier.load_seconds, tier.store_seconds)]
    shown = [f"{each:,.0f}" for each in seconds] if not is_pool else [f"{seconds[0]:,.0f}", "-", "-"]
    verdict = "the engine's own" if is_pool else tier.verdict + (word if tier is layout.asked else "")
    share = f"{100 * layout.share(tier.num_tokens):.1f}"
    return (name, share, f"{100 * tier.best_share:.1f}", *shown, verdict)


def csv_rows(answer: CacheAnswer) -> list[dict[str, object]]:
    """Return a row for each tier of each curve, as ``--format csv`` has them."""
    return [_csv_row(layout, tier) for layout in answer.layouts for tier in (layout.in_pool, *layout.tiers)]


def _csv_row(layout: LayoutAnswer, tier: TierWorth) -> dict[str, object]:
    return {
        "gpu": layout.gpu.gpu.id,
        "gpus_per_replica": layout.curve.layout.num_ranks,
        "kv_cache_dtype": layout.curve.layout.kv_cache_dtype,
        "tier": "hbm" if tier is layout.in_pool else "host",
        "bytes": tier.size_bytes,
        "hit_share": layout.share(tier.num_tokens),
        "belady_share": tier.best_share,
        "saved_prefill_seconds": tier.saved_seconds,
        "load_seconds": tier.load_seconds,
        "store_seconds": tier.store_seconds,
        "verdict": tier.verdict,
    }
