"""What a process that takes a core costs: decode steps alone and beside busy loops, in turn.

    python benchmarks/busy_neighbour.py [--model llama-135m] [--dtype bfloat16] [--batch 8] [--loops 1] [--rounds 5]

A busy loop that has half of one of two cores would cost a quarter of the throughput if work could be cut at will, and
half of it if both threads had to be there all the time.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from decode_step import MODELS, fill, make_engine

from kvplan_engine import Engine

LOOP = "while True: pass"
ROUND_SECONDS = 1.5


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that only compute."""
    processes = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(count)]
    time.sleep(0.5)
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def tokens_per_second(model: str, dtype: str, batch: int, loops: int) -> float:
    """Of decode steps over ROUND_SECONDS beside so many loops, from a context of CONTEXT_TOKENS on."""
    engine = make_engine(model, dtype, batch)
    fill(engine, batch)
    with busy_loops(loops):
        reached = _tokens_per_second(engine, batch)
    engine.close()
    return reached


def _tokens_per_second(engine: Engine, batch: int) -> float:
    engine.step()
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < ROUND_SECONDS:
        engine.step()
        steps += 1
    return steps * batch / (time.perf_counter() - started)


def main() -> None:
    """One line: medians alone and beside the loops, and the median of the rounds' ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="llama-135m")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--loops", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    alone, beside = [], []
    for _ in range(options.rounds):
        for loops, reached in ((0, alone), (options.loops, beside)):
            reached.append(tokens_per_second(options.model, options.dtype, options.batch, loops))
    ratio = statistics.median(first / second for first, second in zip(alone, beside, strict=True))
    print(
        f"{options.model} {options.dtype}, {options.batch} sequences: {statistics.median(alone):.1f} tokens/s alone, "
        f"{statistics.median(beside):.1f} beside {options.loops} busy loop(s): {ratio:.2f} x"
    )


if __name__ == "__main__":
    main()
