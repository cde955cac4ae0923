"""Tables on stdout in the four formats every command offers: a table for people, JSON, CSV, Markdown.

A plain-text table fits its terminal: text is wrapped, and columns that are left over follow below. Nothing is cut off.
A table of numbers too wide for the terminal becomes several, each with the columns that tell the rows apart in front.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise, zip_longest
from typing import Any, Final, TextIO, TypeVar, cast

from kvplan.errors import UsageError
from kvplan.foreign_text import GuardedStream, as_markdown, inert_cell, printable
from kvplan.terminal import fitted, width_of

_INDENT: Final = "  "
_GAP: Final = "  "
_PIECE: Final = re.compile(r"\s*(?:[^\s/]+/?|/)")
"""Text breaks at spaces, and behind the owner in a model's id."""
_NARROWEST: Final = 14
"""Characters that wrapped text needs to stay readable."""
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

    On a terminal it is as wide as that (``table_lines``), cut before the heads that begin its ``parts`` where it has to
    be cut; elsewhere every row is one line.
    """
    if title:
        print_sentence(title, indent="")
    rows = [[printable(cell) for cell in row] for row in rows]
    starts = tuple(index for index, name in enumerate(head) if name in parts)
    for line in table_lines(head, rows, text_columns=text_columns, width=width_of(out()), starts=starts):
        say(line)


def print_rows(
    chosen: OutputFormat,
    document: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    head: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    text_columns: tuple[int, ...] = (0, 1),
    parts: Sequence[str] = (),
) -> None:
    """Print rows in the format that was chosen: ``document`` as JSON, ``rows`` as CSV, ``cells`` below ``head``."""
    if chosen is OutputFormat.json:
        print_json(document)
    elif chosen is OutputFormat.csv:
        print_csv(rows)
    elif chosen is OutputFormat.md:
        print_markdown(head, cells)
    else:
        print_table(None, head, cells, text_columns=text_columns, parts=parts)


def print_sentence(text: str, *, indent: str = "  ", further: str | None = None) -> None:
    """A sentence: on a terminal in lines as wide as that (kvplan.terminal), elsewhere one line. Not for commands."""
    say(fitted(text, out(), indent=indent, further=further))


def print_notes(*notes: str | None) -> None:
    """Notes to the answer, one line each on stderr; None is skipped."""
    for note in notes:
        if note:
            print(fitted(f"note: {printable(note)}", sys.stderr, further="  "), file=sys.stderr)


@dataclass(frozen=True, slots=True)
class _Column:
    head: str
    cells: tuple[str, ...]
    is_text: bool
    is_name: bool = False
    """The first column: it stands whole."""

    @property
    def width(self) -> int:
        return max(map(len, (self.head, *self.cells)))


def table_lines(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text_columns: tuple[int, ...],
    width: int | None,
    starts: Sequence[int] = (),
) -> Iterator[str]:
    """The lines of a table at most ``width`` characters wide where that can be (None: as wide as it is).

    starts: columns that begin a part of the table, which stays whole where it can. Without any, every column is one.
    """
    columns = [
        _Column(name, tuple(row[index] for row in rows), index in text_columns, is_name=index == 0)
        for index, name in enumerate(head)
    ]
    if width is None or _total([column.width for column in columns]) <= width:
        yield from _block(columns, [column.width for column in columns])
        return
    parts = [columns[start:end] for start, end in pairwise((0, *starts, len(columns)))] if starts else []
    for number, group in enumerate(_groups(columns, parts or [[column] for column in columns], width)):
        if number:
            yield ""
        yield from _block(group, _fitted(group, width))


def _total(widths: Sequence[int]) -> int:
    return len(_INDENT) + sum(widths) + len(_GAP) * (len(widths) - 1)


def _least(column: _Column) -> int:
    """How narrow a column can be: numbers and names stand whole, sentences and heads break at their spaces."""
    cells = column.cells
    if column.is_text and not column.is_name:
        words = [piece.strip() for cell in cells for piece in _PIECE.findall(cell)]
        return max([min(column.width, _NARROWEST), *map(len, words), *map(len, column.head.split())])
    return max(map(len, (*column.head.split(), *cells)), default=0)


def _groups(columns: Sequence[_Column], parts: Sequence[Sequence[_Column]], width: int) -> list[list[_Column]]:
    """Parts side by side as far as they fit; what follows below begins with the columns that name the rows.

    A part that is too wide by itself is cut between its columns.
    """

    def fits(shown: Sequence[_Column]) -> bool:
        return _total([_least(column) for column in shown]) <= width

    names = _naming(columns)
    if _total([_least(column) for column in names]) > width // 2:
        numbers = tuple(str(number + 1) for number in range(len(columns[0].cells)))
        names = [_Column("#", numbers, is_text=False)]
    groups = [[] if set(names) <= set(columns) else list(names)]
    for part in parts:
        is_whole = fits([*groups[-1], *part]) or fits([*names, *part])
        for piece in [part] if is_whole else [[column] for column in part]:
            if groups[-1] and not fits([*groups[-1], *piece]):
                groups.append(list(names))
            groups[-1] += [column for column in piece if column not in groups[-1]]
    return groups[1:] if len(groups) > 1 and groups[0] == names else groups  # names alone stand in the next one, too


def _naming(columns: Sequence[_Column]) -> list[_Column]:
    """The fewest of the leading columns that tell the rows apart; all columns where none do."""
    count = next((count for count in range(1, len(columns)) if _tells_apart(columns[:count])), len(columns))
    names = list(columns[:count])
    # Names say more than numbers, and what stands in front more than what follows.
    for _, column in sorted(enumerate(names), key=lambda each: (each[1].is_text, -each[0])):
        without = [each for each in names if each is not column]
        if without and _tells_apart(without):
            names = without
    return names


def _tells_apart(columns: Sequence[_Column]) -> bool:
    keys = list(zip(*(column.cells for column in columns), strict=True))
    return len(set(keys)) == len(keys)


def _fitted(columns: Sequence[_Column], width: int) -> list[int]:
    """Widths that fit: the widest column that can be narrower gives way until all do, heads over numbers first."""
    widths = [column.width for column in columns]
    least = [_least(column) for column in columns]
    while _total(widths) > width:
        spare = [size - bound for size, bound in zip(widths, least, strict=True)]
        if max(spare) <= 0:
            break
        widths[max(range(len(widths)), key=lambda index: _readiness(columns[index], widths[index], spare[index]))] -= 1
    return widths


def _readiness(column: _Column, size: int, spare: int) -> tuple[bool, bool, int]:
    """The greater, the sooner a column gives way: a head in two lines disturbs less than text in two lines."""
    return spare > 0, not column.is_text, size


def _block(columns: Sequence[_Column], widths: Sequence[int]) -> Iterator[str]:
    sides = ["<" if column.is_text else ">" for column in columns]
    rows = [[column.head for column in columns], *zip(*(column.cells for column in columns), strict=True)]
    for number, row in enumerate(rows):
        wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        if number == 0:  # a head stands on its rule
            tallest = max(map(len, wrapped))
            wrapped = [[""] * (tallest - len(cell)) + cell for cell in wrapped]
        for parts in zip_longest(*wrapped, fillvalue=""):
            yield _line(parts, widths, sides)
        if number == 0:
            yield _line(["-" * width for width in widths], widths, sides)


def _wrapped(cell: str, width: int) -> list[str]:
    lines = [""]
    for piece in _PIECE.findall(cell):
        if lines[-1] and len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.lstrip()
    return lines


def _line(cells: Sequence[str], widths: Sequence[int], sides: Sequence[str]) -> str:
    padded = (f"{cell:{side}{width}}" for cell, side, width in zip(cells, sides, widths, strict=True))
    return (_INDENT + _GAP.join(padded)).rstrip()
