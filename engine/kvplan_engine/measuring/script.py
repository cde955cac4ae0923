"""Everything that is measured on a GPU, in two calls of under ten minutes each:

    python -m kvplan_engine.measuring.script --out NAME.jsonl
    python -m kvplan_engine.measuring.script --out NAME.jsonl --part checks

`kvplan doctor --measure` is the first of them. The second one, and the sections that are tests, need the repository.

Each section is a process of its own, so that one that fails (or spoils its CUDA context) takes nothing else with it.
The rows go to --out as they come, and behind each section's how it ended; what the sections print goes to the .log
beside it, the table is printed last and with it why a section failed. The seconds of a section are its most; what the
ten minutes have no room for is left out and named (--sections runs it alone). On a machine without the history of these
sources, --commit says which they are. --dry-run takes tiny shapes through the CPU emulation, to know beforehand that
every line runs; its rows say so and mean nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path

from kvplan_engine.measuring.support import outcome_of

ROOT = Path(__file__).resolve().parents[3]
# The most seconds of each, in the order of their worth: where time or a machine ends early, the last ones are lost.
# A section's process needs about ten seconds to begin, and an engine of eight billion parameters as many.
PARTS = {
    "speed": {
        "kernel_tests": 70,
        "decode": 45,
        "prefill": 35,
        "step": 55,
        "profile": 35,
        "engine_tests": 70,
        "throughput": 75,
        "ladder": 50,
        "memory": 60,
        "random": 45,
        "products": 25,
        "baseline": 80,
        "sweep": 65,
        "operations": 25,
        "formats": 30,
        "shared": 35,
        "tuning": 30,
    },
    "checks": {"sanitizer": 240, "ncu": 80},
}
SECTION_SECONDS = {name: seconds for part in PARTS.values() for name, seconds in part.items()}
TOTAL_SECONDS = 565
"""Of a part; what is left of the ten minutes is for a process that does not die."""
# Each in a process of its own: a kernel that spoils the context fails every test behind it.
TESTS = {"kernel_tests": "test_gpu_kernels.py", "engine_tests": "test_gpu_engine.py"}
# Module and function that measure a section; a section's process imports its own alone.
MEASURES = {
    "decode": ("attention", "measure_decode"),
    "shared": ("attention", "measure_shared"),
    "tuning": ("attention", "measure_tuning"),
    "prefill": ("prefill", "measure_prefill"),
    "operations": ("operations", "measure_operations"),
    "products": ("operations", "measure_products"),
    "formats": ("formats", "measure_formats"),
    "step": ("engine", "measure_decode_step"),
    "throughput": ("engine", "measure_throughput"),
    "profile": ("modes", "measure_profile"),
    "ladder": ("modes", "measure_ladder"),
    "random": ("modes", "measure_random"),
    "baseline": ("baseline", "measure_baseline"),
    "memory": ("memory", "measure_memory"),
    "sweep": ("memory", "measure_sweep"),
    "sanitizer": ("checks", "measure_sanitizer"),
    "ncu": ("checks", "measure_ncu"),
}
MODULE = "kvplan_engine.measuring.script"
_LINES_OF_A_FAILURE = 25
_NEED_THE_REPOSITORY = (*TESTS, *PARTS["checks"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines to append to")
    parser.add_argument("--part", choices=PARTS, default="speed", help="which sections, unless --sections names them")
    parser.add_argument("--sections", help="comma-separated, in order")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes through the CPU emulation")
    parser.add_argument("--seconds", type=float, default=TOTAL_SECONDS, help="for all sections")
    parser.add_argument("--commit", help="of these sources, where git cannot tell")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # the section that this process measures
    return parser.parse_args()


def measure_section(name: str, out: Path, dry: bool, seconds: float) -> None:
    """Measure one section in this process; each row is written as soon as it is there."""
    from kvplan_engine.measuring.support import Bench

    module, function = MEASURES[name]
    getattr(importlib.import_module(f"kvplan_engine.measuring.{module}"), function)(Bench(dry, out, seconds))


def command_of(name: str, options: argparse.Namespace) -> list[str]:
    """The process that runs one section."""
    if name in TESTS:
        tests = str(ROOT / "tests" / "gpu" / TESTS[name])
        return [sys.executable, "-m", "pytest", "-v", "--tb=short", "--durations=5", "-m", "gpu", tests]
    own = [sys.executable, "-m", MODULE, "--only", name, "--out", str(options.out), "--seconds", str(options.seconds)]
    return [*own, "--dry-run"] if options.dry_run else own


def run_section(name: str, options: argparse.Namespace, seconds_left: float) -> str:
    """ok, or what went wrong, of one section. What it started ends with it."""
    if seconds_left < 5:
        return "left out, the time is up"
    if name in _NEED_THE_REPOSITORY and not (ROOT / "tests" / "gpu").is_dir():
        return "left out, it needs the repository"
    print(f"== {name}", file=sys.stderr, flush=True)
    limit = min(SECTION_SECONDS[name], seconds_left)
    options.seconds = limit
    log = options.out.with_suffix(".log")
    with log.open("ab") as output:
        output.write(f"== {name}\n".encode())
        output.flush()
        began = output.tell()
        outcome = outcome_of(command_of(name, options), limit, output, cwd=ROOT, env=environment())
    outcome = "ok" if outcome == "exit code 0" else outcome.replace("exit code", "failed with exit code")
    lines = lines_since(log, began)
    if outcome == "ok" and name in TESTS and not (lines and " passed" in lines[-1]):
        outcome = "no test ran"
    return outcome if outcome == "ok" else outcome + last_words(lines)


def environment() -> dict[str, str]:
    """This process's, with its import path: sections are modules of the same packages."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def lines_since(log: Path, began: int) -> list[str]:
    """What a section has printed, without empty lines."""
    with log.open("rb") as file:
        file.seek(began)
        return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]


def last_words(lines: list[str]) -> str:
    """Prints the end of what a section that did not go well printed; its last line, to be told with the outcome."""
    print("\n".join(lines[-_LINES_OF_A_FAILURE:]), file=sys.stderr, flush=True)
    return f": {lines[-1].strip()[:200]}" if lines else ""


def run_sections(names: list[str], options: argparse.Namespace) -> dict[str, str]:
    """How each ended; one that fails or is stopped leaves the others alone."""
    ends_at, outcomes = time.monotonic() + options.seconds, {}
    for name in names:
        started = time.monotonic()
        outcomes[name] = run_section(name, options, ends_at - started)
        with options.out.open("a") as file:  # even where nothing ran, this is known
            seconds = round(time.monotonic() - started, 1)
            file.write(json.dumps({"section": name, "outcome": outcomes[name], "seconds": seconds}) + "\n")
    return outcomes


def print_table(out: Path, outcomes: dict[str, str]) -> None:
    """The rows of ``out`` against their goals, and how each section ended."""
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []
    rows = [line for line in lines if "value" in line]
    if rows:
        origin = rows[-1]
        print(f"{origin['device']}, driver {origin['driver']}, torch {origin['torch']}, commit {origin['commit']}")
    for row in rows:
        share = "" if row["share"] is None else f"{row['share']:6.2f}"
        goal = "" if row["goal"] is None else f"{row['goal']:5.2f} {'met' if row['share'] >= row['goal'] else 'MISSED'}"
        shape = " ".join(f"{key}={value}" for key, value in row["shape"].items())
        print(f"{row['name']:34s} {shape:74s} {row['value']:10.1f} {row['unit']:16s} {share:>7s} {goal}")
    for name, outcome in outcomes.items():
        print(f"section {name}: {outcome}")


def main() -> int:
    options = arguments()
    options.out = options.out.resolve()
    if options.only:
        measure_section(options.only, options.out, options.dry_run, options.seconds)
        return 0
    chosen = options.sections.split(",") if options.sections else list(PARTS[options.part])
    unknown = [name for name in chosen if name not in SECTION_SECONDS]
    if unknown:
        print(f"error: no section {unknown[0]!r}; there are {', '.join(SECTION_SECONDS)}", file=sys.stderr)
        return 2
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.commit:
        os.environ["KVPLAN_MEASURED_COMMIT"] = options.commit
    outcomes = run_sections(chosen, options)
    print_table(options.out, outcomes)
    return 0 if all(outcome in ("ok", "left out, it needs the repository") for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
