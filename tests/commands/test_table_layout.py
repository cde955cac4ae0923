"""Tables on a terminal: as wide as it is, nothing cut off, rows told apart in every part."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pytest

from kvplan.cli import main
from kvplan.commands.printing.render import print_json
from kvplan.commands.printing.table_layout import table_lines

HEAD = ["model", "context", "GPU", "KV pool GiB", "KV tokens", "limit"]
ROWS = [
    ["Llama-3.1-8B", "8k", "l4", "4.39", "35,952", ""],
    ["Llama-3.1-8B", "32k", "l4", "4.39", "35,952", "longest sequence that fits: 35,952 tokens"],
    ["gpt2", "8k", "h100-sxm", "71.11", "2,071,088", "the weights do not fit: 3.62 GiB short"],
]


def lines_of(width: int | None, rows: Sequence[Sequence[str]] = ROWS) -> list[str]:
    return list(table_lines(HEAD, rows, text_columns=(0, 2, 5), width=width))


def test_elsewhere_than_on_a_terminal_a_row_is_a_line() -> None:
    lines = lines_of(None)
    assert len(lines) == 2 + len(ROWS)
    assert max(map(len, lines)) > 90
    assert lines == lines_of(200)


@pytest.mark.parametrize("width", [100, 80, 60, 40])
def test_a_table_is_no_wider_than_the_terminal_and_keeps_every_word(width: int) -> None:
    lines = lines_of(width)
    assert max(map(len, lines)) <= width
    shown = " ".join(lines).split()
    assert all(word in shown for row in (HEAD, *ROWS) for cell in row for word in cell.split())


def test_numbers_and_names_stand_whole_and_sentences_wrap() -> None:
    lines = lines_of(80)
    assert any("2,071,088" in line and "h100-sxm" in line for line in lines)
    assert not any("longest sequence that fits: 35,952 tokens" in line for line in lines)


def test_a_part_below_begins_with_what_tells_its_rows_apart() -> None:
    first, second = "\n".join(lines_of(50)).split("\n\n")
    assert "KV pool" in first and "limit" not in first
    keys = [line.split()[:2] for line in second.splitlines()[2:] if line.startswith("  Llama") or "gpt2" in line]
    assert keys == [["Llama-3.1-8B", "8k"], ["Llama-3.1-8B", "32k"], ["gpt2", "8k"]]


def test_rows_that_only_all_columns_tell_apart_are_numbered() -> None:
    lines = lines_of(40, [ROWS[0], ROWS[0], ROWS[1]])
    parts = "\n".join(lines).split("\n\n")
    assert len(parts) > 1
    assert all([line.split()[0] for line in part.splitlines() if line.split()[0].isdigit()] == list("123")
               for part in parts)  # fmt: skip


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_command_prints_tables_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for terminal, fits in ((_Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stdout", terminal)
        assert main(["models", "qwen3-vl"]) == 0
        assert (max(map(len, terminal.getvalue().splitlines())) <= 80) == fits


def test_json_is_ascii_where_the_output_can_say_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    with io.TextIOWrapper(written, encoding="ascii") as narrow:
        monkeypatch.setattr("sys.stdout", narrow)
        print_json({"name": "Modèle"})
        narrow.flush()
        text = written.getvalue().decode("ascii")
    assert json.loads(text) == {"name": "Modèle"}
