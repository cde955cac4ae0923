"""Writes docs/recipes.md: ten questions as operators ask them, each with its command and what that prints now.

    python tools/write_recipes.py

tests/test_readme.py runs every command of the page again and compares.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "recipes.md"
_WIDTH = 128
_INTRODUCTION = """# Recipes

Ten questions as operators ask them, each answered by one command. What is shown is what was printed; `...` stands for
lines left out. Every figure of time is a prediction; `kvplan sweep` measures on your machine ([sweep.md](sweep.md)).
"""

Shows = Callable[[int, Sequence[str]], bool]
"""Whether to show the line of that number of those printed."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A question, its command, which of the printed lines to show, and what to make of them."""

    question: str
    command: str
    shows: Shows
    remark: str


def everything(_number: int, _lines: Sequence[str]) -> bool:
    return True


def rows(count: int, *, others: int = 0) -> Shows:
    """The first ``count`` rows of the table, and ``others`` of the one for other formats."""

    def shows(number: int, lines: Sequence[str]) -> bool:
        heads = [index for index, line in enumerate(lines) if line.startswith("  deployment")]
        is_row = heads[0] <= number < heads[0] + 2 + count
        return is_row or (others > 0 and heads[1] - 1 <= number < heads[1] + 2 + others)

    return shows


def having(*parts: str) -> Shows:
    """Lines with any of ``parts`` in them."""
    return lambda number, lines: any(part in lines[number] for part in parts)


def after(start: str) -> Shows:
    """The line that begins so, and all below it."""

    def shows(number: int, lines: Sequence[str]) -> bool:
        return number >= next(index for index, line in enumerate(lines) if line.startswith(start))

    return shows


def any_of(*choices: Shows) -> Shows:
    return lambda number, lines: any(choice(number, lines) for choice in choices)


ANSWER = having("Rent ", "Gives ", "Costs ")

RECIPES = (
    Recipe(
        "How many GPUs for 200 users who want the first token within 3 s and ten tokens a second?",
        "kvplan plan llama-3.1-70b --users 200 --input-len 2k --output-len 300 --slo ttft:3000 tpot:100 "
        "--gpu h100-sxm h200 --max-gpus 32",
        any_of(ANSWER, rows(3)),
        "The answer is the cheapest that keeps both bounds as surely as was asked for (`--confidence`, 0.75 without); "
        "`sure` says it of each line. `--explain` shows what breaks first when more users come.",
    ),
    Recipe(
        "Should I serve it in fp8?",
        "kvplan plan llama-3.1-70b --users 32 --ctx-avg 8k --gpu h100-sxm",
        any_of(having("Rent "), rows(2, others=2), having("fp8 weights:", "fp8 KV cache:")),
        "The published format comes first, because it answers as the model was evaluated. Below it stands what other "
        "formats save, what they need, and what is known of their quality.",
    ),
    Recipe(
        "Two RTX 4090 or one RTX 5090?",
        "kvplan plan qwen3-14b --users 8 --ctx-avg 8k --gpu rtx-4090 rtx-5090 --max-gpus 2 --quantization "
        "published fp8",
        rows(5),
        "At these prices the two cost as much as the one, to a cent. They hold more sequences, and take longer to read "
        "a prompt and for each token.",
    ),
    Recipe(
        "How do I serve a large mixture of experts on two nodes?",
        "kvplan plan deepseek-v3 --users 64 --ctx-avg 8k --gpu h100-sxm --max-gpus 16",
        any_of(having("Rent "), rows(1), having("Between nodes", "    node ")),
        "Pipeline stages need little of the network. Data-parallel groups (`--dp 16 --ep`) hold twice as many "
        "sequences, since each has a KV cache of its own, but their tokens cross it in every layer. `--json` has "
        "both.",
    ),
    Recipe(
        "What does a draft model cost, and what does it bring?",
        "kvplan estimate llama-3.1-70b --gpu h100-sxm --tp 4 --ctx 8k --speculative-model llama-3.2-1b "
        "--num-speculative-tokens 4 --acceptance-rate 0.7",
        any_of(having("Drafter"), after("Speed-up from speculation")),
        "Its weights and its KV cache come out of the same memory. The gain depends on the share of draft tokens "
        "that the model accepts, which only your own prompts tell.",
    ),
    Recipe(
        "How many long sequences fit?",
        "kvplan estimate llama-3.1-8b qwen3-30b-a3b gemma-3-27b --ctx 32k,128k --gpu h100-sxm",
        everything,
        "`B/token` is what one more token costs; windows and states are in `per sequence`. Below 1 not even one "
        "sequence fits, and `limit` says how long one may be.",
    ),
    Recipe(
        "What do I get for three dollars an hour?",
        "kvplan plan llama-3.1-8b --request-rate 5 --input-len 1k --output-len 256 --slo ttft:1000 tpot:50 --budget 3",
        any_of(ANSWER, rows(3)),
        "Your own prices: `--price h100-sxm=2.1 --price l40s=0.6`. GPUs without a price are left out of a budget.",
    ),
    Recipe(
        "What does my start-up log say?",
        "kvplan explain tests/data/startup_logs/vllm-0.19-llama-3.1-8b-h100.log",
        everything,
        "Where the log and the prediction part, the difference is the thing to look at.",
    ),
    Recipe(
        "Why did it run out of memory?",
        "kvplan explain tests/data/startup_logs/vllm-0.7-no-room.log",
        everything,
        "A log of any length will do, also one of a server that stopped while it was running.",
    ),
    Recipe(
        "What do I set?",
        "kvplan plan llama-3.1-8b --users 64 --ctx-avg 4k --ctx-max 16k --gpu l40s --max-gpus 1 --quantization fp8 "
        "--kv-cache-dtype fp8",
        any_of(ANSWER, having("  vllm:")),
        "`max_num_seqs` is what the load needs and `max_model_len` the longest sequence that must be served: both"
        " leave more memory to the KV cache than the defaults do.",
    ),
)


def printed(command: str) -> list[str]:
    """What the command prints on stdout, line by line."""
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
    )
    return [line.rstrip() for line in done.stdout.strip().splitlines()]


def shown_lines(lines: Sequence[str], shows: Shows) -> list[str]:
    """The lines to show, with dots where others were."""
    found: list[str] = []
    for number, line in enumerate(lines):
        if shows(number, lines):
            found.append(line)
        elif found and found[-1] != "...":
            found.append("...")
    return found


def section(recipe: Recipe) -> str:
    lines = "\n".join(shown_lines(printed(recipe.command), recipe.shows))
    remark = textwrap.fill(recipe.remark, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"\n## {recipe.question}\n\n```console\n$ {recipe.command}\n{lines}\n```\n\n{remark}\n"


if __name__ == "__main__":
    PAGE.write_text(_INTRODUCTION + "".join(map(section, RECIPES)), encoding="utf-8")
