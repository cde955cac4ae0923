"""tools/check_ranks.py: the page has a row for every grid, and what was not as it should be stands in it."""

from __future__ import annotations

from pathlib import Path

from rank_checks.killed import Death
from rank_checks.page import page, problems
from rank_checks.tokens import CASES, Row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ranks-check.md"


def test_the_page_has_every_grid_and_nothing_wrong() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for case in CASES:
        for ranks, stages in case.grids:
            assert f"\n| {case.name} | {ranks} | {stages} | " in text
    assert text.count("| `rank_died` |") == 2
    assert text.endswith("## Not as expected\n\nNothing.\n")


def test_a_different_token_and_a_late_row_are_problems() -> None:
    rows = [
        Row("gpt2", (2, 1), 72, 72, 100),
        Row("gpt2", (4, 1), 71, 72, 100, problem="1 of 72 tokens differ"),
        Row("gpt2", (3, 1), refusal="4 attention heads cannot be divided over 3 ranks."),
    ]
    died = "Rank 1 of 2 was ended by SIGKILL."
    deaths = [
        Death(2, "rank_died", died, 0.2, "ok"),
        Death(4, "rank_died", died, 10.5, "ok"),
        Death(8, "crash", died, 0.2, "ok"),
    ]
    wrong = [
        "- gpt2, 4 x 1: 1 of 72 tokens differ",
        "- killed, 4 ranks: the row took 10.5 s",
        "- killed, 8 ranks: the rows were crash and ok",
    ]
    assert problems(rows, deaths) == wrong
    text = page(rows, deaths, "2.13")
    assert text.endswith("\n".join(["## Not as expected", "", *wrong]) + "\n")
    assert "| gpt2 | 3 | 1 | refused: 4 attention heads cannot be divided over 3 ranks. |  |" in text
