"""Lines of a plain-text table that fits a terminal: text is wrapped, and columns that are left over follow below.

Nothing is cut off. A table of numbers too wide for the terminal becomes several, each with the columns that tell the
rows apart in front.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

_INDENT: Final = "  "
_GAP: Final = "  "
_NARROWEST: Final = 14
"""Characters that wrapped text needs to stay readable."""


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
    head: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: tuple[int, ...], width: int | None
) -> Iterator[str]:
    """The lines of a table at most ``width`` characters wide where that can be (None: as wide as it is)."""
    columns = [
        _Column(name, tuple(row[index] for row in rows), index in text_columns, is_name=index == 0)
        for index, name in enumerate(head)
    ]
    if width is None or _total([column.width for column in columns]) <= width:
        yield from _block(columns, [column.width for column in columns])
        return
    for number, group in enumerate(_groups(columns, width)):
        if number:
            yield ""
        yield from _block(group, _fitted(group, width))


def _total(widths: Sequence[int]) -> int:
    return len(_INDENT) + sum(widths) + len(_GAP) * (len(widths) - 1)


def _least(column: _Column) -> int:
    """How narrow a column can be: numbers and names stand whole, sentences and heads break at their spaces."""
    cells = column.cells
    if column.is_text and not column.is_name:
        words = [word for cell in cells for word in cell.split()]
        return max([min(column.width, _NARROWEST), *map(len, words), *map(len, column.head.split())])
    return max(map(len, (*column.head.split(), *cells)), default=0)


def _groups(columns: Sequence[_Column], width: int) -> list[list[_Column]]:
    """Columns side by side as far as they fit; what follows below begins with the columns that name the rows."""
    names = _naming(columns)
    if _total([_least(column) for column in names]) > width // 2:
        numbers = tuple(str(number + 1) for number in range(len(columns[0].cells)))
        names = [_Column("#", numbers, is_text=False)]
    groups = [[] if set(names) <= set(columns) else list(names)]
    for column in columns:
        if groups[-1] and _total([_least(each) for each in (*groups[-1], column)]) > width:
            groups.append(list(names))
        if column not in groups[-1]:
            groups[-1].append(column)
    return groups


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
    """Widths that fit: the widest column that can be narrower gives way until all do."""
    widths = [column.width for column in columns]
    least = [_least(column) for column in columns]
    while _total(widths) > width:
        spare = [size - bound for size, bound in zip(widths, least, strict=True)]
        if max(spare) <= 0:
            break
        widths[max(range(len(widths)), key=lambda index: (spare[index] > 0) * widths[index])] -= 1
    return widths


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
    return textwrap.wrap(cell, width, break_on_hyphens=False, break_long_words=False) or [""]


def _line(cells: Sequence[str], widths: Sequence[int], sides: Sequence[str]) -> str:
    padded = (f"{cell:{side}{width}}" for cell, side, width in zip(cells, sides, widths, strict=True))
    return (_INDENT + _GAP.join(padded)).rstrip()
