"""Text on a terminal: broken between words as wide as it is, with figures and options whole, one line elsewhere."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

import pytest

from kvplan.cli import main
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
COMMANDS = ("kvplan:", "vllm:", "sglang:", "tensorrt-llm:", "tgi:", "llama.cpp:")
"""Lines to paste stay whole."""


@pytest.mark.parametrize("columns", [80, 120])
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
    assert [line for line in lines if broken.search(line)] == [], "figures and options stand whole"


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
