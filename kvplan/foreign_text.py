"""Text that others wrote, on its way to a terminal: no character of it may be an order to the terminal.

A model's name, an error's body or a line of a log may hold escape sequences (that clear the screen, set the title or
write to the clipboard), carriage returns that write over a line, or characters that turn text around. They are written
as JSON would write them (``\\u001b``), so that a JSON document says the same with them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO, TypeVar, cast

Cell = TypeVar("Cell")

_ORDERS: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line feed, DEL, C1
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u206f"  # marks and overrides of direction, invisible ones
    "\u2028\u2029\ufeff\ufff9-\ufffb"  # line and paragraph separators, byte order mark, annotations
    "\U000e0000-\U000e007f"  # tags, which nobody sees
    "\ud800-\udfff"  # halves of a character
)
_NOT_PRINTABLE: Final = re.compile(f"[{_ORDERS}]")
_NOT_IN_A_LINE: Final = re.compile(f"[{_ORDERS}\t\n]")
_MARKUP: Final = re.compile(r"[\\|`\[\]<]")
_FORMULA: Final = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""How a cell begins that a spreadsheet would run: OWASP's list, with the full-width forms."""
_SHORT: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def printable(text: str) -> str:
    """Foreign text within a line of ours: controls as their escapes, line feeds and tabs too."""
    return _NOT_IN_A_LINE.sub(_escaped, text)


def blanked(text: str) -> str:
    """The same with one visible character in the place of each, where text must keep its length."""
    return _NOT_IN_A_LINE.sub("\N{REPLACEMENT CHARACTER}", text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code - 0x10000 & 0x3FF):04x}"


def as_markdown(text: str) -> str:
    """Foreign text within a line of Markdown: it starts no cell, tag, code, link or other line."""
    return _MARKUP.sub(lambda match: "&lt;" if match[0] == "<" else f"\\{match[0]}", " ".join(text.split()))


def inert_cell(value: Cell) -> Cell:
    """A cell of a CSV file that no spreadsheet runs: text that would begin a formula has an apostrophe before it.

    So has text that begins with apostrophes before such a character: without its first one it is what it was.
    """
    if not isinstance(value, str) or not _FORMULA.match(value) or _is_number(value):
        return value
    return f"'{value}"  # type: ignore[return-value]  # a str for a str


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class GuardedStream:
    """A text stream that writes line feeds and tabs, and everything else that is no order to a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        self.unguarded.write(_NOT_PRINTABLE.sub(_escaped, text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.unguarded, name)


@contextmanager
def guarded_output() -> Iterator[None]:
    """Guard stdout and stderr: whatever a command prints, in which place ever, passes through here."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, GuardedStream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def unguarded(stream: TextIO) -> TextIO:
    """The stream itself, for orders of our own: foreign text that goes there is made ``printable`` first."""
    return stream.unguarded if isinstance(stream, GuardedStream) else stream
