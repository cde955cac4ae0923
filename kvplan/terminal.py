"""Text wrapped to a terminal's width, never within a figure or between an option and its value."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from typing import Final, TextIO

_NARROWEST: Final = 40
_KEPT: Final = "\N{NO-BREAK SPACE}"
"""Stands for a space at which a line must not break."""
_JOINTS: Final = re.compile(
    r"(?<=T) (?=p\d\d|within)|(?<=p\d\d) (?=\d)"  # TTFT p50 138, TPOT within 15 %
    r"|(?<=\d) (?=\()"  # 138 (37-822)
    r"|(?<=[\d)]) (?=(?:ms|%|[KMGT]i?B|B|tokens/s)(?!\w))"  # (37-822) ms
    r"|(?<=\d) (?=x \w)|(?<=\d x) (?=\w)"  # 8 x h200
    r"|(?<=\+/-) (?=\d)"
)
_OPTION: Final = re.compile(r"(?<!\S)(--[a-z][\w-]*) (?=[\w{'])")


def width_of(stream: TextIO) -> int | None:
    """Columns of the terminal that ``stream`` writes to; None where it is not a terminal."""
    if not stream.isatty():
        return None
    if os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return shutil.get_terminal_size().columns


def fitted(text: str, stream: TextIO, *, indent: str = "", further: str | None = None) -> str:
    """``text`` after ``indent``, wrapped on a terminal, elsewhere on one line.

    further: the indent of all lines but the first; None: the same.
    """
    width = width_of(stream)
    if width is None:
        return indent + text
    kept = _OPTION.sub(rf"\1{_KEPT}", _JOINTS.sub(_KEPT, text))
    lines = textwrap.wrap(
        kept,
        max(width, _NARROWEST) - 1,
        initial_indent=indent,
        subsequent_indent=indent if further is None else further,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_KEPT, " ")
