"""Engines over every grid of ranks and stages beside one process, and ranks that are killed in a sweep.

    PYTHONPATH=tests/engine/cases python tools/check_ranks.py --out docs/ranks-check.md    # make check-ranks; minutes

What the engines are asked stands with the tests (tests/engine/cases/rank_cases.py). Exit code 1 where a token or a
block differs, or a killed rank is no row within ten seconds; a grid that the heads do not allow is a row that says so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from rank_checks.killed import kill_a_rank
from rank_checks.page import page, problems
from rank_checks.tokens import CASES, Row, check_case


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, write the page, and say what was not as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="page to write; default: stdout")
    parser.add_argument("--only", choices=("tokens", "killed"), help="one section")
    chosen = parser.parse_args(arguments)
    out = chosen.out
    with tempfile.TemporaryDirectory(prefix="kvplan-ranks-") as name:
        rows = _tokens(Path(name)) if chosen.only != "killed" else []
        deaths = [kill_a_rank(number, Path(name)) for number in (2, 4)] if chosen.only != "tokens" else []
    text = page(rows, deaths, torch.__version__)
    if out is None:
        print(text)
    else:
        out.write_text(text, encoding="utf-8")
    wrong = problems(rows, deaths)
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


def _tokens(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for case in CASES:
        for row in check_case(case, folder):
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(main())
