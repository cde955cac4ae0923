"""The kernels under NVIDIA's tools: compute-sanitizer over their tests, and ncu over one launch of each attention."""

from __future__ import annotations

import os
import shutil
import sys
import time

from kvplan_engine.measuring.support import ROOT, Bench, outcome_of

# By tool: the checker of shared memory's races is the slower one, and the attention kernels are who uses it.
_SANITIZED_TESTS = {
    "memcheck": "copied or operations or (attention and (d80 or d64) and not h12.12) or (warp_groups and bs256)",
    "racecheck": "operations or (attention and d80)",
}
_LAUNCHES = ("decode", "prefill")
_SECONDS_TO_SPARE = 2


def measure_sanitizer(bench: Bench) -> None:
    """compute-sanitizer over some of the kernel tests: out-of-range and misaligned accesses, then races."""
    # each tensor an allocation of its own, so that one byte behind it is found
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    for number, (tool, chosen) in enumerate(_SANITIZED_TESTS.items()):
        tests = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "gpu", "-k", chosen]
        tests += ["-p", "no:cacheprovider", str(ROOT / "tests" / "gpu" / "test_gpu_kernels.py")]
        command = ["true"] if bench.dry else [find_tool("compute-sanitizer"), "--tool", tool, "--error-exitcode", "9"]
        command += tests
        limit = bench.seconds_left() / (len(_SANITIZED_TESTS) - number) - _SECONDS_TO_SPARE
        add_outcome(bench, "sanitizer", f"compute-sanitizer {tool}", command, limit, environment, {"tests": chosen})


def measure_ncu(bench: Bench) -> None:
    """ncu's full report of the third launch of each attention kernel, in the log and beside the rows."""
    target = ROOT / "tools" / "gpu" / "one_launch.py"
    for number, kernel in enumerate(_LAUNCHES):
        command = [sys.executable, str(target), kernel, *(["--dry-run"] if bench.dry else [])]
        if not bench.dry:
            report = [] if bench.out is None else ["--export", str(bench.out.with_suffix(f".{kernel}")), "-f"]
            options = ["--set", "full", "--kernel-name", f"{kernel}_attention", "--launch-skip", "2"]
            command = [find_tool("ncu"), *options, "--launch-count", "1", *report, "--print-details", "all", *command]
        limit = bench.seconds_left() / (len(_LAUNCHES) - number) - _SECONDS_TO_SPARE
        add_outcome(bench, "ncu", f"ncu of {kernel}", command, limit, dict(os.environ), {"kernel": kernel})


def add_outcome(
    bench: Bench,
    section: str,
    name: str,
    command: list[str],
    limit: float,
    environment: dict[str, str],
    shape: dict[str, str],
) -> None:
    """A row that says whether ``command`` ended well within ``limit`` seconds."""
    started = time.perf_counter()
    outcome = outcome_of(command, max(1.0, limit), sys.stderr, cwd=ROOT, env=environment)
    clean = float(outcome == "exit code 0")
    seconds = time.perf_counter() - started
    bench.add(section, name, clean, "clean", {"outcome": outcome, **shape}, clean, goal=1.0, median_seconds=seconds)


def find_tool(name: str) -> str:
    """The program on PATH or of the toolkit's usual place."""
    found = shutil.which(name) or shutil.which(f"/usr/local/cuda/bin/{name}")
    if found is None:
        raise RuntimeError(f"{name} is not on this machine")
    return found
