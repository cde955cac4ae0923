"""What a command line cannot mean, or cannot be answered: a sentence, a hint, the exit code, and nothing on stdout."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from data_rows import data_rows

from kvplan.cli import main


@pytest.mark.parametrize("row", data_rows("refused_commands"), ids=lambda row: row["command"][:60])
def test_a_mistake_is_one_sentence_and_a_hint(row: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(row["command"])) == row.get("code", 2)
    printed = capsys.readouterr()
    error, *hints = printed.err.splitlines()
    assert error.startswith("error: ") and row.get("error", "") in error
    assert "whole" not in row or error == f"error: {row['whole']}"
    wanted = row.get("hint", "")
    assert [hint.startswith("hint: ") and wanted in hint for hint in hints] == [True] * (wanted is not None)
    assert bool(printed.out) == row.get("shown", False)
    assert "enough" not in row or main(shlex.split(row["enough"])) == 0
