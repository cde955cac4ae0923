"""The page's sections, each a function of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvplan.reports.findings import (
    KvWaste,
    Recommendation,
    kv_waste,
    noise_sentence,
    prediction_sentences,
    recommendations,
    sentences,
    status_counts,
)
from kvplan.reports.html.markup import Html, breakable, data_uri, join, tag
from kvplan.reports.html.tables import group_tables, main_table, status_badge
from kvplan.reports.pictures import Picture
from kvplan.reports.plots.slo import searches
from kvplan.reports.statuses import STATUS_ORDER, look_of
from kvplan.reports.tables import csv_text
from kvplan.reports.wording import cell, plural, run_phrase, short_number
from kvplan.runs.reader import Run

_MOST_SENTENCES: Final = 6
# Long lists of the manifest that the page shows elsewhere or not at all.
_NOT_ENVIRONMENT: Final = frozenset({"columns", "planes", "trials", "schema", "statuses"})


def section(identifier: str, heading: str, *children: object) -> Html:
    """A heading with what stands under it, to be linked to by its identifier."""
    return tag("section", tag("h2", heading), *children, id=identifier)


def header(run: Run) -> Html:
    """Model and device as the title, circumstances under it."""
    model = run.first("model_id") or "unknown model"
    device = run.first("device_name") or run.first("device") or "unknown device"
    started = min((trial.text("started_at") for trial in run.trials if trial.text("started_at")), default="")
    about = " · ".join(filter(None, (run_phrase(run), _when(started))))
    return tag("header", tag("h1", f"{model} on {device}"), tag("p", about, class_="faint"))


def _when(started_at: str) -> str:
    """``started 2026-11-21 10:15 UTC`` from an ISO time in UTC; any other text as it is."""
    if started_at.endswith("+00:00") and len(started_at) >= 16:
        return f"started {started_at[:10]} {started_at[11:16]} UTC"
    return f"started {started_at}" if started_at else ""


def notes(run: Run, name: str = "") -> Html:
    """What is missing or was left out, before anything is concluded. ``name`` tells runs apart where there are two."""
    lines = [*run.notes]
    planned = run.summary.get("num_trials")
    if run.summary.get("interrupted"):
        lines.append("The sweep was interrupted: the report shows the trials that had ended by then.")
    if isinstance(planned, int) and planned > len(run.trials):
        lines.append(f"{len(run.trials)} of {planned} trials have ended; --resume runs the others.")
    lines += [noise] if (noise := noise_sentence(run)) else []
    lines += [f"Left out of every median: {sentence}." for sentence in run.excluded.values()]
    listed = run.summary.get("notes")
    lines += [str(line) for line in listed] if isinstance(listed, list) else []
    return join(*(tag("p", f"{name}: {line}" if name else line, class_="note") for line in lines))


def recommendation(run: Run) -> Html:
    """What to deploy, or why nothing can be; how the trials ended."""
    found = recommendations(run)
    counts = status_counts(run)
    badges = tag("div", *(join(tag("span", status_badge(name), f" {count}")) for name, count in counts.items()),
                 class_="badges")  # fmt: skip
    total = tag("p", f"{plural(len(run.trials), 'trial')}, by outcome:")
    if not found:
        return section("recommendation", "No setting could be served", total, badges, _reasons(run))
    cards = tag("div", *(card(entry, is_first=place == 0) for place, entry in enumerate(found)), class_="cards")
    return section("recommendation", "Recommendation", cards, total, badges)


def _reasons(run: Run) -> Html:
    errors = dict.fromkeys(trial.text("error") for trial in run.trials if trial.text("error"))
    return tag("ul", *(tag("li", error) for error in list(errors)[:_MOST_SENTENCES]))


def card(entry: Recommendation, *, is_first: bool = False) -> Html:
    """One recommendation with its settings, figures and commands."""
    commands = join(*(_command(name, text) for name, text in entry.commands.items()))
    if not is_first and commands:
        commands = tag("details", tag("summary", "Commands"), commands)
    lists = tag("div", _definitions(entry.settings), _definitions(entry.figures), class_="two")
    kind = "card first" if is_first else "card"
    return tag("div", tag("h3", entry.title), tag("p", entry.reason, class_="faint"), lists, commands, class_=kind)


def _command(name: str, text: str) -> Html:
    label = f"{name}, in Python" if text.startswith("LLM(") else name
    button = tag("button", "copy", type="button", data_copy=True)
    return tag("div", tag("div", label, class_="label"), tag("pre", *_unbroken(text)), button, class_="command")


def _unbroken(command: str) -> list[Html]:
    """A command whose lines break between words only, never at an option's hyphens."""
    words = [tag("span", word) for word in command.split(" ")]
    return [part for word in words for part in (word, Html(" "))][:-1]


def _definitions(values: Mapping[str, str]) -> Html:
    return tag(
        "dl", *(part for name, value in values.items() for part in (tag("dt", breakable(name)), tag("dd", value)))
    )


def picture(drawn: Picture) -> Html:
    """A picture in its own box that scrolls sideways where the screen is narrower."""
    image = tag("img", src=data_uri(drawn.png, "image/png"), alt=drawn.finding, style=f"max-width:{drawn.width_px}px")
    box = tag("div", image, class_="scroll", tabindex="0", role="region", aria_label=drawn.heading)
    # On a phone the picture scrolls sideways, and the finding written over it with it: there it stands here as well.
    return tag("figure", tag("figcaption", drawn.finding, class_="phone"), box, id=f"picture-{drawn.name}")


def service_level(run: Run, drawn: Picture | None) -> Html:
    """The largest load within the service level, where one was searched."""
    if drawn is None or not searches(run):
        return Html("")
    criterion = str(run.summary["slo"].get("criterion") or "")
    told = [str(search["sentence"]) for search in searches(run) if search.get("sentence")]
    lead = tag("p", f"Criterion: {criterion}." if criterion else "", class_="faint")
    return section("slo", drawn.heading, _sentence_list([f"{line}." for line in told]), lead, picture(drawn))


def boundaries(run: Run, drawn: Picture) -> Html:
    """The map, the boundaries in words, and what contradicts them."""
    flagged = sentences(run, "violations")
    warning = [tag("p", f"Not monotone: {line}", class_="note") for line in flagged[:_MOST_SENTENCES]]
    return section(
        "outcomes", "Outcomes and boundaries", picture(drawn), *warning, _sentence_list(sentences(run, "boundaries"))
    )


def _sentence_list(lines: list[str]) -> Html:
    if not lines:
        return Html("")
    shown = tag("ul", *(tag("li", line) for line in lines[:_MOST_SENTENCES]))
    rest = lines[_MOST_SENTENCES:]
    if not rest:
        return shown
    return join(
        shown, tag("details", tag("summary", f"{len(rest)} more"), tag("ul", *(tag("li", line) for line in rest)))
    )


def predictions(run: Run, drawn: Picture) -> Html:
    """The picture and the summary's counts."""
    lines = prediction_sentences(run)
    listed = tag("ul", *(tag("li", line) for line in lines)) if lines else Html("")
    return section("predicted", "Predicted against measured", picture(drawn), listed)


def waste(run: Run, drawn: Picture) -> Html:
    """Paged beside contiguous as bars, then the block sizes."""
    found = kv_waste(run)
    if found is None:
        return section("waste", "KV memory: paged against contiguous", tag("p", "No trial was served."), picture(drawn))
    told = f"Of the KV memory that running sequences held, {short_number(found.paged_pct)} % held tokens with pages; "
    told += f"with max_model_len reserved for each of them it would have been {short_number(found.contiguous_pct)} %."
    return section("waste", "KV memory: paged against contiguous", tag("p", told), _waste_bars(found), picture(drawn))


def _waste_bars(found: KvWaste) -> Html:
    paged = "paged" + (f", block_size {short_number(found.block_size)}" if found.block_size else "")
    whole = "contiguous" + (f", {short_number(found.max_model_len)} tokens each" if found.max_model_len else "")
    return tag("div", *_bar(paged, found.paged_pct), *_bar(whole, found.contiguous_pct), class_="waste")


def _bar(label: str, held_pct: float) -> tuple[Html, Html]:
    held = min(100.0, max(0.0, held_pct))
    inside = f"{short_number(held)} % tokens" if held > 22 else ""
    outside = f"{short_number(held)} % tokens, rest empty" if held <= 22 else f"{short_number(100 - held)} % empty"
    full = tag("div", inside, class_="full", style=f"width:{held:.2f}%" + ("" if inside else ";padding:0"))
    empty = tag("div", outside if held < 78 else "", class_="empty", title=f"{short_number(100 - held)} % empty")
    return tag("div", label), tag("div", full, empty, class_="bar", role="img",
                                  aria_label=f"{label}: {held:.1f} % of the memory holds tokens")  # fmt: skip


def trials(run: Run) -> Html:
    """The rows: what matters most, every column by group, and all of them as a file."""
    download = tag("a", "results.csv", href=data_uri(csv_text(run).encode(), "text/csv"), download="results.csv")
    lead = tag(
        "p",
        "A click on a heading sorts; groups that are open are printed. All rows as a file: ",
        download,
        ".",
        class_="faint screen",
    )
    return section(
        "trials", "Trials", lead, main_table(run), tag("h3", "Every column", class_="screen"), group_tables(run)
    )


def environment(run: Run) -> Html:
    """The manifest, flattened: what it takes to run this again."""
    if not run.manifest:
        return section("environment", "Environment", tag("p", "There is no manifest."))
    known = {key: value for key, value in run.manifest.items() if key not in _NOT_ENVIRONMENT}
    return section("environment", "Environment", _definitions(dict(_flattened(known))))


def _flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flattened(value, f"{name}.")
        elif value is not None:
            unit = "bytes" if str(key).endswith("_bytes") else ""
            yield name, cell(value, unit)


def legend(run: Run) -> Html:
    """What the statuses mean, for whoever meets them in the table: in the sweep's own words where it left them."""
    told = run.manifest.get("statuses")
    known = told if isinstance(told, dict) else {}
    meanings = {name: known.get(name) or look_of(name).meaning for name in STATUS_ORDER}
    entries = (part for name, text in meanings.items() for part in (tag("dt", status_badge(name)), tag("dd", text)))
    return tag("details", tag("summary", "What the statuses mean"), tag("dl", *entries))
