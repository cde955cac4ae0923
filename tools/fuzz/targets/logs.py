"""Start-up logs of engines with lines changed, mixed and repeated: ``explain`` with and without a model and a GPU."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fuzz.commands import SECONDS_PER_CASE, run_command, without_the_hub
from fuzz.harness import Target
from fuzz.mutations import mutate_bytes

_DATA = Path(__file__).resolve().parents[3] / "tests" / "data"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_ODD_NUMBERS = (
    *("0", "0.0", "-1", "1", "00", "1.2.3", "1e999", "nan", "inf", ",", "1,2,3", "0.0000001", "1" + "0" * 14),
    *("9" * 20, "9" * 400, "9" * 5000, "." + "9" * 50, "1." + "0" * 400),
)
_MODELS = ("gpt2", "llama-3.1-8b", "qwen3.5-27b", "gemma-3-27b", "deepseek-v3.2", "jamba-v0.1")


class _Case(NamedTuple):
    """The bytes of a log, and the command line but for its path."""

    content: bytes
    words: tuple[str, ...]


@contextmanager
def open_target() -> Iterator[Target[_Case]]:
    """Give the target; its cases are written to one file, one after the other."""
    files = sorted((*(_DATA / "startup_logs").glob("*.log"), *(_DATA / "engine_outputs").rglob("*.log")))
    logs = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    lines = [line for log in logs for line in log.splitlines()]
    with tempfile.TemporaryDirectory() as folder, without_the_hub():
        path = Path(folder) / "start.log"

        def try_case(case: _Case) -> str:
            path.write_bytes(case.content)
            return run_command(("explain", str(path), *case.words))

        yield Target(lambda rng: _make_case(logs, lines, rng), try_case, seconds_per_case=SECONDS_PER_CASE)


def _make_case(logs: list[str], lines: list[str], rng: random.Random) -> _Case:
    words = ["--model", rng.choice(_MODELS)] if rng.random() < 0.5 else []
    words += ["--gpu", rng.choice(("h100-sxm", "l4", "gb10", "rtx-3090"))] if rng.random() < 0.5 else []
    words += ["--json"] if rng.random() < 0.7 else []
    return _Case(_content(logs, lines, rng), tuple(words))


def _content(logs: list[str], lines: list[str], rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.25:
        return mutate_bytes(rng.choice(logs).encode(), rng)
    own = rng.choice(logs).splitlines() if kind < 0.7 else rng.choices(lines, k=rng.randint(1, 12))
    for _ in range(rng.randint(0, 4)):
        own.insert(rng.randint(0, len(own)), rng.choice(lines))
    for _ in range(rng.randint(0, 6)):
        index = rng.randrange(len(own))
        own[index] = _with_odd_number(own[index], rng)
    if kind > 0.97:
        own = [line * rng.choice((2, 200)) for line in own]
    return rng.choice(("\n", "\n", "\r\n", " ")).join(own).encode("utf-8", errors="replace")


def _with_odd_number(line: str, rng: random.Random) -> str:
    numbers = list(_NUMBER.finditer(line))
    if not numbers:
        return line
    chosen = rng.choice(numbers)
    return line[: chosen.start()] + rng.choice(_ODD_NUMBERS) + line[chosen.end() :]
