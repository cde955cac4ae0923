"""Tables on stdout in the four formats every command offers: a table for people, JSON, CSV, Markdown."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from typing import Any, TextIO, TypeVar, cast

from kvplan.commands.printing.table_layout import table_lines
from kvplan.errors import UsageError
from kvplan.foreign_text import GuardedStream, as_markdown, inert_cell, printable
from kvplan.terminal import fitted, width_of

Format = TypeVar("Format", bound=Enum)
_CAPTURED: ContextVar[TextIO | None] = ContextVar("captured", default=None)


def out() -> TextIO:
    """Return where an answer is written: stdout, or what ``captured`` collects."""
    return _CAPTURED.get() or sys.stdout


def say(text: str = "", *, end: str = "\n") -> None:
    """Write a line of an answer."""
    print(text, end=end, file=out())


def captured(write: Callable[[], None]) -> str:
    """Return what ``write`` says, as it stands in a file: no line is wrapped."""
    text = io.StringIO()
    before = _CAPTURED.set(cast(TextIO, GuardedStream(text)))
    try:
        write()
    finally:
        _CAPTURED.reset(before)
    return text.getvalue()


class OutputFormat(str, Enum):
    """What ``--format`` takes."""

    table = "table"
    json = "json"
    csv = "csv"
    md = "md"


def chosen_format(output_format: Format, *, as_json: bool) -> Format:
    """What --format and --json ask for together. UsageError where --format asks for another one than JSON.

    A table is what --format says where it is left out.
    """
    if not as_json:
        return output_format
    if output_format.value not in ("json", "table"):
        raise UsageError(
            f"--json and --format {output_format.value} ask for two formats at once.", hint="leave one of them out"
        )
    return type(output_format)("json")


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document and nothing else; in ASCII where the output can say no more."""
    encoding = (out().encoding or "utf-8").casefold().replace("-", "")
    say(json.dumps(document, indent=2, ensure_ascii=encoding != "utf8"))


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """A header and one line per row; None is an empty cell."""
    if not rows:
        return
    writer = csv.DictWriter(out(), list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: inert_cell(value) for name, value in row.items()} for row in rows)


def print_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table; a head that ends in a unit or a number's name is right-aligned by the reader's viewer."""
    say("| " + " | ".join(head) + " |")
    say("| " + " | ".join("---" for _ in head) + " |")
    for row in rows:
        say("| " + " | ".join(map(as_markdown, row)) + " |")


def print_table(
    title: str | None,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text_columns: tuple[int, ...] = (0,),
    parts: Sequence[str] = (),
) -> None:
    """A plain-text table, readable without colour: ``text_columns`` to the left, numbers to the right.

    On a terminal it is as wide as that (kvplan.commands.printing.table_layout), cut before the heads that begin its
    ``parts`` where it has to be cut; elsewhere every row is one line.
    """
    if title:
        print_sentence(title, indent="")
    rows = [[printable(cell) for cell in row] for row in rows]
    starts = tuple(index for index, name in enumerate(head) if name in parts)
    for line in table_lines(head, rows, text_columns=text_columns, width=width_of(out()), starts=starts):
        say(line)


def print_sentence(text: str, *, indent: str = "  ", further: str | None = None) -> None:
    """A sentence: on a terminal in lines as wide as that (kvplan.terminal), elsewhere one line. Not for commands."""
    say(fitted(text, out(), indent=indent, further=further))


def print_notes(*notes: str | None) -> None:
    """Notes to the answer, one line each on stderr; None is skipped."""
    for note in notes:
        if note:
            print(fitted(f"note: {printable(note)}", sys.stderr, further="  "), file=sys.stderr)
