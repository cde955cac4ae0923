"""How long a sweep takes to its first step, what a new setting costs, and how much memory its worker takes.

    python benchmarks/sweep_start.py [--model gpt2] [--repeat 3]

Each repetition is the command `kvplan sweep` as a user types it, over three settings, kernels cached, with a pool so
small that the requests nearly fill it. Times count from before the command's process exists. Memory is the largest
resident set that any process below the command had (Linux: ru_maxrss), so interpreter and torch are in it.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MIB = 1024**2
# The command with one thing added: the time of each stage that its worker reports, on stderr.
COMMAND = """
import json, resource, sys, time
sys.path[:0] = sys.argv[1].split(":")
from kvplan.cli import main
from kvplan.sweeps.progress import SilentProgress
def event(self, message):
    print("event", json.dumps({"at": time.time(), **message}), file=sys.stderr, flush=True)
SilentProgress.event = event
sys.argv = ["kvplan", *sys.argv[2:]]
code = main()
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print("event", json.dumps({"at": time.time(), "stage": "ended", "peak_bytes": peak}), file=sys.stderr)
sys.exit(code)
"""


def run_sweep(model: str, device_memory: str, directory: Path) -> dict[str, float]:
    """Seconds from pressing the key to each stage of the first trial, and the worker's peak memory."""
    arguments = ["sweep", "--model", model, "--load-format", "dummy", "--device", "cpu", "--out", str(directory)]
    arguments += ["--device-memory", device_memory, "--gpu-memory-utilization", "0.9", "--max-num-seqs", "8,12,16"]
    arguments += ["--block-size", "16", "--max-model-len", "1024", "--num-prompts", "24", "--no-rerun"]
    arguments += ["--input-len", "256", "--output-len", "32"]
    path = f"{ROOT}:{ROOT / 'engine'}"
    started = time.time()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, path, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"the sweep ended with {done.returncode}: {done.stderr[-400:]}")
    times: dict[str, float] = {}
    for line in done.stderr.splitlines():
        if not line.startswith("event "):
            continue
        event = json.loads(line.removeprefix("event "))
        times.setdefault(event.get("stage", event.get("type", "")), event["at"] - started)
        if "peak_bytes" in event:
            times["peak_bytes"] = event["peak_bytes"]
    return times


def print_rows(times: dict[str, float], directory: Path) -> None:
    """One repetition's figures."""
    with (directory / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    setups = [float(row["setup_seconds"]) for row in rows[1:]]
    first = rows[0]
    counted = int(first["weights_bytes"]) + max(int(row["num_blocks_total"]) * int(row["block_bytes"]) for row in rows)
    usage = max(float(row["kv_usage_max"]) for row in rows)
    print(
        f"worker loads after {times['loading']:5.2f} s, first step after {times['warmup']:5.2f} s, "
        f"first request after {times['serving']:5.2f} s; a new setting {max(setups):.3f} s; "
        f"all over after {times['ended']:.1f} s"
    )
    print(
        f"weights and pool {counted / MIB:,.0f} MiB (of the pool {usage:.0%} used at most), "
        f"worker {times['peak_bytes'] / MIB:,.0f} MiB: {(times['peak_bytes'] - counted) / MIB:+,.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--device-memory", default="1150MiB", help="leaves gpt2 a pool that 16 requests nearly fill")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    for index in range(options.repeat):
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder) / f"run{index}"
            times = run_sweep(options.model, options.device_memory, directory)
            print_rows(times, directory)


if __name__ == "__main__":
    main()
