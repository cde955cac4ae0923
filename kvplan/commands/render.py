"""Tables on stdout in the four formats every command offers: a table for people, JSON, CSV, Markdown."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any


class OutputFormat(str, Enum):
    """What ``--format`` takes."""

    table = "table"
    json = "json"
    csv = "csv"
    md = "md"


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document and nothing else."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """A header and one line per row; None is an empty cell."""
    if not rows:
        return
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def print_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table; a head that ends in a unit or a number's name is right-aligned by the reader's viewer."""
    print("| " + " | ".join(head) + " |")
    print("| " + " | ".join("---" for _ in head) + " |")
    for row in rows:
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")


def print_table(
    title: str | None, head: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: tuple[int, ...] = (0,)
) -> None:
    """A plain-text table, readable without colour: ``text_columns`` to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    sides = ["<" if index in text_columns else ">" for index in range(len(head))]
    if title:
        print(title)
    for row in (head, ["-" * width for width in widths], *rows):
        cells = (f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True))
        print("  " + "  ".join(cells).rstrip())


def print_notes(*notes: str | None) -> None:
    """Notes to the answer, one line each on stderr; None is skipped."""
    for note in notes:
        if note:
            print(f"note: {note}", file=sys.stderr)
