"""The page that holds two runs against each other."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.reports.comparison import COMPARED_COLUMNS, Comparison, Match, verdicts
from kvplan.reports.findings import recommendations
from kvplan.reports.html import sections
from kvplan.reports.html.markup import Html, breakable, join, tag
from kvplan.reports.html.page import document
from kvplan.reports.html.tables import scrolled, status_badge
from kvplan.reports.pictures import Picture
from kvplan.reports.selection import Spread
from kvplan.reports.wording import plural, setting, short_number


def comparison_page(comparison: Comparison, pictures: Sequence[Picture]) -> str:
    """Verdicts and circumstances first, then the picture, both recommendations and every shared setting."""
    first, second = comparison.names
    title = f"{second} against {first}"
    body = join(
        tag("header", tag("h1", title), tag("p", _coverage(comparison), class_="faint")),
        *(sections.notes(run, name) for run, name in zip(comparison.runs, comparison.names, strict=True)),
        sections.section("verdict", "What changed", _list(verdicts(comparison)), _differences(comparison)),
        sections.section("throughput", "Throughput", *(sections.picture(drawn) for drawn in pictures)),
        sections.section("recommendations", "Recommendations", _recommendations(comparison)),
        sections.section("settings", "Shared settings", _settings_table(comparison)),
        sections.legend(comparison.runs[0]),
    )
    return document(title, body)


def _coverage(comparison: Comparison) -> str:
    alone = [
        f"{count} only in {name}" for name, count in zip(comparison.names, comparison.num_alone, strict=True) if count
    ]
    return ", ".join([f"{plural(len(comparison.matches), 'setting')} in both", *alone]) + "."


def _list(lines: Sequence[str]) -> Html:
    return tag("ul", *(tag("li", line) for line in lines))


def _differences(comparison: Comparison) -> Html:
    if not comparison.differences:
        return tag("p", "Model, device, workload and engine are the same in both.")
    rows = [(entry.name, entry.first, entry.second) for entry in comparison.differences]
    head = tag("tr", *(tag("th", name, scope="col", class_="text") for name in ("what differs", *comparison.names)))
    body = [tag("tr", *(tag("td", text, class_="text") for text in row)) for row in rows]
    table = tag("table", tag("thead", head), tag("tbody", *body))
    return join(tag("p", "The runs were not made under the same circumstances:"), scrolled(table, "circumstances"))


def _recommendations(comparison: Comparison) -> Html:
    cards = []
    for name, run in zip(comparison.names, comparison.runs, strict=True):
        found = recommendations(run)
        shown = sections.card(found[0]) if found else tag("div", tag("p", "No setting could be served."), class_="card")
        cards.append(tag("div", tag("h3", name), shown))
    return tag("div", *cards, class_="cards")


def _settings_table(comparison: Comparison) -> Html:
    every = list(dict.fromkeys(name for match in comparison.matches for name in match.settings))
    names = [name for name in every if len({str(match.settings.get(name)) for match in comparison.matches}) > 1]
    shared = ", ".join(
        f"{name} {setting(comparison.matches[0].settings.get(name))}" for name in every if name not in names
    )
    heads = [*names, "status first", "status second"]
    heads += [f"{column} {part}" for column in COMPARED_COLUMNS for part in ("first", "second", "ratio")]
    head = tag("tr", *(tag("th", breakable(name), scope="col", data_sortable=True) for name in heads))
    rows = [tag("tr", *_cells(match, names)) for match in comparison.matches]
    table = scrolled(tag("table", tag("thead", head), tag("tbody", *rows)), "shared settings")
    return join(tag("p", f"All at {shared}.", class_="faint"), table) if shared else table


def _cells(match: Match, names: Sequence[str]) -> list[Html]:
    cells = [tag("td", setting(match.settings.get(name)), data_value=match.settings.get(name, "")) for name in names]
    cells += [tag("td", status_badge(status), data_value=status) for status in match.statuses]
    for column in COMPARED_COLUMNS:
        cells += [_figure(spread) for spread in match.figures[column]]
        ratio = match.ratio(column)
        cells.append(tag("td", "" if ratio is None else f"{ratio:.2f}", data_value="" if ratio is None else ratio))
    return cells


def _figure(spread: Spread | None) -> Html:
    if spread is None:
        return tag("td", "", data_value="")
    hint = (
        f"{short_number(spread.low)} to {short_number(spread.high)}, {spread.count} runs" if spread.count > 1 else None
    )
    return tag("td", short_number(spread.median), data_value=spread.median, title=hint)
