"""Runs a target's cases and counts what came of them.

A case is made from its seed and its number alone, so that one that failed is run again by ``--first N --cases 1``.
"""

from __future__ import annotations

import random
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Generic, TypeVar

Case = TypeVar("Case")

_MEMORY_BEYOND_START_BYTES = 6 * 1024**3
_MOST_FAULTS_KEPT = 50


class Hang(BaseException):
    """Raised in a case that takes longer than its limit. Not an Exception, so that no handler under test eats it."""


class Fault(Exception):
    """Raised by a target's ``try_case`` for an answer that is wrong: a 5xx, a leaked block, a negative size."""


@dataclass(frozen=True)
class Target(Generic[Case]):
    """Says how a case of one input is made, and what is tried with it.

    ``try_case`` returns the outcome in a word or two (they are counted) and raises what is a fault: any exception
    that a user would see as a traceback, or ``Fault``. ``check_all`` looks at the whole after the last case.
    """

    make_case: Callable[[random.Random], Case]
    try_case: Callable[[Case], str]
    check_all: Callable[[], None] = lambda: None
    seconds_per_case: float = 10.0


@dataclass
class Outcomes:
    """Counts of what came of the cases, and the faults in full."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[int, str]] = field(default_factory=list)
    num_faults: int = 0
    slowest_seconds: float = 0.0
    slowest_case: int = -1

    def fault(self, number: int, text: str) -> None:
        """Count a fault of case ``number`` (-1: of the whole), and keep its text while there is room."""
        self.num_faults += 1
        if len(self.faults) < _MOST_FAULTS_KEPT:
            self.faults.append((number, text))


def run_cases(
    target: Target[Case], *, cases: int, seed: int = 0, first: int = 0, keep: Path | None = None, progress: bool = False
) -> Outcomes:
    """Try cases ``first`` to ``first + cases`` of ``seed``; those at fault are written to ``keep`` if given."""
    outcomes = Outcomes()
    with _memory_limit(_MEMORY_BEYOND_START_BYTES):
        for number in range(first, first + cases):
            case = target.make_case(random.Random(f"{seed}:{number}"))
            began = time.monotonic()
            try:
                with _time_limit(target.seconds_per_case):
                    outcomes.counts[target.try_case(case)] += 1
            except Hang:
                outcomes.fault(number, f"hang: no end within {target.seconds_per_case:g} s of the processor")
            except (Exception, SystemExit):  # noqa: BLE001 - whatever a user would see as a traceback is what is looked for
                outcomes.fault(number, traceback.format_exc(limit=-6))
            seconds = time.monotonic() - began
            if seconds > outcomes.slowest_seconds:
                outcomes.slowest_seconds, outcomes.slowest_case = seconds, number
            if keep is not None and outcomes.faults and outcomes.faults[-1][0] == number:
                _keep(keep, number, case)
            if progress and (number - first + 1) % 1000 == 0:
                print(f"{number - first + 1:,} of {cases:,} cases, {outcomes.num_faults} faults", flush=True)
        try:
            target.check_all()
        except Exception:  # noqa: BLE001 - as above, for the whole
            outcomes.fault(-1, traceback.format_exc(limit=-6))
    return outcomes


def _keep(folder: Path, number: int, case: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(case, bytes):
        (folder / f"case-{number}.bin").write_bytes(case)
    else:
        (folder / f"case-{number}.txt").write_text(repr(case), encoding="utf-8")


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise Hang after ``seconds`` of the processor, or six times as long by the clock: a busy machine is no hang."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 6 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _memory_limit(bytes_beyond_start: int) -> Iterator[None]:
    """Bound the address space, so that an input that asks for all memory is a MemoryError, not the end of the run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    with suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (in_use + bytes_beyond_start, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
