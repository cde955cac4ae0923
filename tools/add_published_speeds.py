"""Adds rows to tools/published_speeds/speeds.csv. Run: python tools/add_published_speeds.py FILE --seen d

FILE has the columns that rows are collected with; what its words say becomes the further columns
(published_speeds/stated.py), once. ``--seen``: when the rows became known, a letter. Rows whose id is there already are
replaced; without FILE all rows are converted anew.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from published_speeds.rows import PUBLISHED  # noqa: E402
from published_speeds.stated import COLUMNS, is_open, stated_columns  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--seen", default="a")
    arguments = parser.parse_args()
    rows = {row["id"]: row for row in _read(PUBLISHED)}
    if arguments.file:
        rows |= {row["id"]: row | {"seen": arguments.seen} for row in _read(arguments.file)}
    collected = [column for column in next(iter(rows.values())) if column not in COLUMNS]
    with PUBLISHED.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*collected, *COLUMNS], lineterminator="\n")
        writer.writeheader()
        for row in rows.values():
            stated = stated_columns(row)
            said = {each: row[each] for each in collected if each not in stated or not is_open(row[each])}
            writer.writerow(dict.fromkeys(collected, "") | stated | said | {"seen": _seen(row)})


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _seen(row: dict[str, str]) -> str:
    return row.get("seen") or "a"


if __name__ == "__main__":
    main()
