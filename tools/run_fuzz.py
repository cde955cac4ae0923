"""Fuzzes what kvplan reads from others: files, request bodies, pages of metrics.

    python tools/run_fuzz.py config --cases 20000          # one kind of input; minutes
    python tools/run_fuzz.py all --cases 500 --seed 7
    python tools/run_fuzz.py gguf --first 1234 --cases 1   # one case again

Exit code 1 where a case ended in a traceback, took longer than its limit, or had a wrong answer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import fuzz.targets
from fuzz.harness import Outcomes, run_cases

TARGETS = tuple(sorted(module.name for module in iter_modules(fuzz.targets.__path__)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz the chosen targets, print what came of the cases, and say whether any was at fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=(*TARGETS, "all"))
    parser.add_argument("--cases", type=int, default=1000, help="how many cases of each target (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--keep", type=Path, help="folder for the cases that are at fault")
    chosen = parser.parse_args(arguments)
    num_faults = 0
    for name in TARGETS if chosen.target == "all" else (chosen.target,):
        began = time.monotonic()
        with import_module(f"fuzz.targets.{name}").open_target() as target:
            keep = chosen.keep / name if chosen.keep else None
            outcomes = run_cases(
                target, cases=chosen.cases, seed=chosen.seed, first=chosen.first, keep=keep, progress=True
            )
        print(_summary(name, chosen.cases, chosen.seed, outcomes, time.monotonic() - began))
        num_faults += outcomes.num_faults
    return 1 if num_faults else 0


def _summary(name: str, cases: int, seed: int, outcomes: Outcomes, seconds: float) -> str:
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.counts.most_common())
    lines = [
        f"{name}: {cases:,} cases of seed {seed} in {seconds:.0f} s, {outcomes.num_faults} faults",
        f"  {counts}",
        f"  slowest: case {outcomes.slowest_case}, {outcomes.slowest_seconds:.2f} s",
    ]
    lines += [f"  case {number}: {text}" for number, text in outcomes.faults]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
