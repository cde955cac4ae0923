"""Questions as operators put them, at the first command: what is known to be right stands in the answer.

What is right follows from arithmetic, from vLLM's source or documentation, or from published systems; each says which.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from data_rows import data_rows

from kvplan.catalog.models import resolve_model
from kvplan.cli import main

ROWS = data_rows("first_commands")


@pytest.mark.parametrize(("words", "code", "said"), [(row["command"], row["code"], row["says"]) for row in ROWS])
def test_the_first_command_answers(words: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(words)) == code
    printed = capsys.readouterr()
    assert re.search(said, printed.out + printed.err), printed.out[:600] + printed.err[:600]


def test_a_trace_is_a_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Azure's columns; 40 requests in 10 s, each of 1,000 and 100 tokens."""
    lines = [f"2024-05-10 00:00:{index / 4:09.6f},1000,100" for index in range(40)]
    path = tmp_path / "azure.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    assert main(["plan", "llama-3.1-8b", "--workload", str(path), "--gpu", "h100"]) == 0
    assert "Rent 1 x h100-sxm" in capsys.readouterr().out


def test_a_directory_is_served_where_it_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fine-tune that somebody has."""
    folder = tmp_path / "ft"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(resolve_model("llama-3.1-8b").raw_config))
    assert main(["plan", str(folder), "--users", "4", "--ctx-avg", "4k", "--gpu", "h100"]) == 0
    assert f"vllm serve {folder} " in capsys.readouterr().out
