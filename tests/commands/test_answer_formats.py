"""``plan --format md`` and ``explain --format``: the same answers, for pages and for tables elsewhere."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from kvplan.cli import main

LOG = str(Path(__file__).parents[1] / "data" / "startup_logs" / "vllm-0.19-llama-3.1-8b-h100.log")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def tables(text: str) -> list[list[list[str]]]:
    """The Markdown tables of a text, row by row; the dashes below a head are left out."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            found[-1] += [] if set("".join(cells)) == {"-"} else [cells]
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def test_a_plan_in_markdown_has_the_rows_of_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("plan", "llama-3.1-8b", "--users", "8", "--ctx-max", "4k", "--gpu", "h100")
    text = printed(capsys, *question, "--format", "md")
    assert text.startswith("**meta-llama/Llama-3.1-8B**\n\nRent 1 x h100-sxm")
    assert "\n```\nvllm serve meta-llama/Llama-3.1-8B " in text
    first, *others = tables(text)
    shown = printed(capsys, *question)
    for row in first[1:]:
        assert any(line.split() == " ".join(row).split() for line in shown.splitlines())
    assert all(table[0] == first[0] for table in others)


def test_an_account_in_each_format(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("explain", LOG, "--model", "llama-3.1-8b")
    document = json.loads(printed(capsys, *question, "--format", "json"))
    assert json.loads(printed(capsys, *question, "--json")) == document
    rows = list(csv.DictReader(io.StringIO(printed(capsys, *question, "--format", "csv"))))
    assert [row["part"] for row in rows] == [part["part"] for part in document["memory"]]
    text = printed(capsys, *question, "--format", "md")
    (table,) = tables(text)
    assert table[0] == ["GiB of one GPU", "log", "kvplan", "difference"]
    logged = {part["part"]: part["logged_bytes"] for part in document["memory"]}
    for name, log, *_ in table[1:]:
        assert log == "-" or float(log.replace(",", "")) == pytest.approx(logged[name] / 1024**3, abs=0.005)
    assert main([*question, "--json", "--format", "csv"]) == 2
