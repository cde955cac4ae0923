"""Text and tables on a terminal: as wide as it is, figures and options whole, one line elsewhere; in each format."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvplan.cli import main
from kvplan.commands.printing.render import print_json, table_lines
from kvplan.terminal import fitted


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


DATA = Path(__file__).resolve().parents[1] / "data"
QUESTIONS = (
    "estimate llama-3.1-8b --ctx 16k",
    "estimate gpt-oss-120b --gpu h100",
    "estimate llama-3.1-8b --ctx 16k --gpu h100 --explain",
    "estimate gemma-3-27b --ctx 8k --gpu h200 --engine kvplan --explain",
    "estimate deepseek-v3 --gpu 8xh200 --ctx 8k --num-speculative-tokens 1",
    "estimate llama-3.1-8b qwen3-8b --ctx 8k,32k --gpu l4 8xh200 --kv-cache-dtype auto,fp8",
    "estimate llama-3.1-8b --gpu l4 --ctx 1m",
    "estimate qwen3.6-27b-nvfp4 --gpu h100 --ctx 8k",
    "estimate llama-3.1-8b --gpu l4 --speculative-model qwen3-0.6b --num-speculative-tokens 2",
    "estimate llama-3.1-8b --gpu l4 --num-speculative-tokens 2",
    "plan llama-3.1-8b --users 10 --ctx-avg 8k --gpu l4 h100",
    "plan llama-3.1-70b --users 10 --ctx-avg 8k --gpu l4 --slo ttft:1",
    f"explain {DATA / 'startup_logs' / 'vllm-0.22-cpu-busy.log'}",
    f"explain {DATA / 'startup_logs' / 'vllm-0.9-oom-loading-qwen3-32b.log'}",
    f"calibrate {DATA / 'results' / 'vllm-cpu-sweeps' / 'gpt2-blocks'} --out -",
    "models llama",
    "gpus",
)
ENGINES = ("kvplan:", "vllm:", "sglang:", "tensorrt-llm:", "tgi:", "llama.cpp:")
COMMANDS = (*ENGINES, "CUDA_VISIBLE_DEVICES=", "before them:")
"""Lines to paste stay whole."""


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("words", QUESTIONS)
def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, words: str, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out, err = _Terminal(), _Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    main(shlex.split(words))
    lines = f"{out.getvalue()}\n{err.getvalue()}".splitlines()
    lines = [line for line in lines if not line.strip().startswith(COMMANDS)]
    assert [line for line in lines if len(line) > columns] == []
    broken = re.compile(r"(?:\bp\d\d|(?<!\S)--[a-z][a-z-]*|TTFT|TPOT|\+/-|\d \([\d.,]+-[\d.,]+\))$")
    heads = re.compile(r"p\d\d {2,}\S")  # of columns, whose units stand below
    broken_lines = [line for line in lines if broken.search(line) and not heads.search(line)]
    assert broken_lines == [], "figures and options stand whole"


def test_what_fits_at_once_stands_in_one_part_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal = _Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert main(shlex.split("estimate llama-3.1-8b --ctx 16k --gpu l40s h100")) == 0
    heads = [line.split() for line in terminal.getvalue().splitlines() if line.startswith("  GPU")]
    assert heads == [
        ["GPU", "memory", "weights", "activations", "overhead", "KV", "pool"],
        ["GPU", "KV", "tokens", "+/-", "sequences"],
        ["GPU", "TTFT", "p50", "ms", "TPOT", "p50", "ms", "tokens/s", "at", "once"],
    ]


def test_elsewhere_a_sentence_is_one_line() -> None:
    text = "word " * 60
    assert fitted(text, io.StringIO(), indent="  ") == f"  {text}"


def test_further_lines_stand_behind_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = fitted("hint: use --ctx 8192, or 8 x h200, or TTFT p50 138 (37-822) ms", _Terminal(), further="  ")
    assert lines == "hint: use --ctx 8192, or 8 x h200, or\n  TTFT p50 138 (37-822) ms"


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


LOG = str(Path(__file__).parents[1] / "data" / "startup_logs" / "vllm-0.19-llama-3.1-8b-h100.log")


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


def test_a_plan_in_markdown_has_the_rows_of_its_table(printed_by: Callable[..., str]) -> None:
    question = ("plan", "llama-3.1-8b", "--users", "8", "--ctx-max", "4k", "--gpu", "h100")
    text = printed_by(*question, "--format", "md")
    assert text.startswith("**meta-llama/Llama-3.1-8B**\n\nRent 1 x h100-sxm")
    assert "\n```\nvllm serve meta-llama/Llama-3.1-8B " in text
    first, *others = tables(text)
    shown = printed_by(*question)
    for row in first[1:]:
        assert any(line.split() == " ".join(row).split() for line in shown.splitlines())
    assert all(table[0] == first[0] for table in others)


def test_an_account_in_each_format(printed_by: Callable[..., str]) -> None:
    question = ("explain", LOG, "--model", "llama-3.1-8b")
    document = json.loads(printed_by(*question, "--format", "json"))
    assert json.loads(printed_by(*question, "--json")) == document
    rows = list(csv.DictReader(io.StringIO(printed_by(*question, "--format", "csv"))))
    assert [row["part"] for row in rows] == [part["part"] for part in document["memory"]]
    text = printed_by(*question, "--format", "md")
    (table,) = tables(text)
    assert table[0] == ["GiB of one GPU", "log", "kvplan", "difference"]
    logged = {part["part"]: part["logged_bytes"] for part in document["memory"]}
    for name, log, *_ in table[1:]:
        assert log == "-" or float(log.replace(",", "")) == pytest.approx(logged[name] / 1024**3, abs=0.005)
    assert main([*question, "--json", "--format", "csv"]) == 2
