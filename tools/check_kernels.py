"""Breaks kernels on purpose, one at a time, and lets the check of a first start find them (`make check-kernels`).

On the emulation: no GPU is needed. Prints a table for docs/gpu.md; exit code 1 where a fault was not found, or a kernel
was blamed that is right.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engine" / "cases"))

from planted_faults import FAULTS, Fault, FaultyRuntime

from kvplan_engine.kernel_checks.run import check_kernels
from kvplan_engine.kernel_checks.use import FAMILIES
from kvplan_engine.kernel_checks.verdicts import Store, Verdict


def main() -> int:
    """The exit code."""
    print("| planted | found in | how | instead |\n| --- | --- | --- | --- |")
    missed = [fault for fault in FAULTS if not _is_found(fault)]
    print(f"\n{len(FAULTS) - len(missed)} of {len(FAULTS)} found, nothing else blamed.", file=sys.stderr)
    return 1 if missed else 0


def _is_found(fault: Fault) -> bool:
    """Whether what fails is what was broken."""
    with tempfile.TemporaryDirectory() as folder:
        runtime = FaultyRuntime([fault], Path(folder))
        failed = check_kernels(runtime, fault.use(), Store(None)).failed
    print(f"| {fault.name} | {_names(failed)} | {_reasons(failed)} | {_twins(failed)} |", flush=True)
    return {each.family for each in failed} == set(fault.families)


def _names(failed: tuple[Verdict, ...]) -> str:
    return ", ".join(f"`{each.family}`" for each in failed) or "nothing"


def _reasons(failed: tuple[Verdict, ...]) -> str:
    return "; ".join(dict.fromkeys(each.why.removeprefix("emulated kernel: ") for each in failed))


def _twins(failed: tuple[Verdict, ...]) -> str:
    return ", ".join(dict.fromkeys(FAMILIES[each.family].twin or "" for each in failed))


if __name__ == "__main__":
    sys.exit(main())
