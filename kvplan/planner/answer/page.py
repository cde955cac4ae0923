"""One HTML page that holds everything it shows, asks no other host for anything, and follows the reader's
light or dark.

Figures are SVG in the colours of the page; tables scroll sideways where they are wider than the screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d232a; --faint: #5b6570; --paper: #ffffff; --line: #d5dae0; --grid: #e8ebee;
  --a: #1f5f99; --b: #b3541e; --c: #2d7a46; --d: #7a4fa3; --e: #8fc3a0; --f: #9aa3ab; --bound: #b00020; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --faint: #a2abb4; --paper: #14181c; --line: #39424b;
  --grid: #262d34; --a: #7db8ee; --b: #f0a56b; --c: #7ccf96; --d: #c8a5ee; --e: #3f6b4c; --f: #5d6770;
  --bound: #ff8a94; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1180px;
  margin: 0 auto; padding: 0 16px 48px; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 24px 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 32px 0 4px; }
p { margin: 6px 0; max-width: 80ch; } .faint, figcaption { color: var(--faint); font-size: .9rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 8px 28px; }
figure { margin: 0; } svg { width: 100%; height: auto; display: block; overflow: visible; }
svg text { fill: var(--faint); }
summary { cursor: pointer; color: var(--faint); font-size: .9rem; }
@media (max-width: 560px) { svg text, svg tspan { font-size: 15px; } svg .name { font-size: 13px; } }
pre { white-space: pre-wrap; overflow-wrap: anywhere;
  border: 1px solid var(--line); border-radius: 6px; padding: 10px; font-size: .85rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 12px 3px 0; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--faint); font-weight: 600; }
li { max-width: 90ch; } .miss { color: var(--bound); }
.bars { font-size: .9rem; } .bar { display: flex; height: 18px; margin: 2px 0 10px; border: 1px solid var(--line); }
.bar span { display: block; height: 100%; }
.key { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: .85rem; color: var(--faint); margin: 6px 0 10px; }
.key i { display: inline-block; width: 12px; height: 12px; margin-right: 5px; border: 1px solid var(--line); }
"""


class TableRow(NamedTuple):
    """Cells of a row; is_miss: it stands out as one that does not keep what was asked for."""

    cells: Sequence[str]
    is_miss: bool = False


def html_page(title: str, body: Iterable[str]) -> str:
    """The whole page. ``body``: elements as HTML; those that are empty are left out."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} · kvplan</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(filter(None, body)) + "\n</body>\n</html>\n"
    )


def paragraphs(lines: Iterable[str]) -> str:
    """A paragraph for each line."""
    return "\n".join(f"<p>{escape(line)}</p>" for line in lines)


def listed(notes: Iterable[str]) -> str:
    """Notes as a list."""
    return "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def commands(lines: Iterable[str]) -> str:
    """Commands to copy; "" without any."""
    text = "\n".join(lines)
    return f"<pre>{escape(text)}</pre>" if text else ""


def folded(summary: str, content: str) -> str:
    """Content that opens where its summary is chosen."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def figure(picture: str, caption: str) -> str:
    """A picture with its caption."""
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def side_by_side_figures(figures: Iterable[str]) -> str:
    """Figures in as many columns as there is room for."""
    return '<div class="charts">' + "".join(figures) + "</div>"


def table(name: str, head: Sequence[str], rows: Iterable[TableRow]) -> str:
    """A table that is read aloud as ``name``."""
    shown = (_row(row) for row in rows)
    heads = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}"><table><thead><tr>'
        f"{heads}</tr></thead><tbody>{''.join(shown)}</tbody></table></div>"
    )


def _row(row: TableRow) -> str:
    look = ' class="miss"' if row.is_miss else ""
    return f"<tr{look}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.cells) + "</tr>"
