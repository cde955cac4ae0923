"""The product's own sweep on the device beside its predictions."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kvplan_engine.measuring.engine import DRY_CONFIG
from kvplan_engine.measuring.processes import outcome_of
from kvplan_engine.measuring.support import Bench, Row

WITHIN = 0.02
_SECONDS_TO_SPARE = 6
_AXES = {
    "--gpu-memory-utilization": "0.2,0.5,0.9,1.0",
    "--max-num-seqs": "16,256",
    "--block-size": "16,32",
    "--max-model-len": "2k,32k",
}
_DRY_AXES = {
    "--gpu-memory-utilization": "0.02,0.9",
    "--max-num-seqs": "2",
    "--block-size": "16",
    "--max-model-len": "64",
}


def measure_sweep(bench: Bench) -> None:
    """Four axes with their out-of-memory boundaries, as far as the time goes; every row predicted beforehand.

    The sweep's own directory is kept beside the rows: speeds are calibrated from it.
    """
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "sweep" if bench.out is None else _new_beside(bench.out)
        started = time.perf_counter()
        ended = run_sweep(bench, Path(folder), directory)
        seconds = time.perf_counter() - started
        lines = (directory / "trials.jsonl").read_text().splitlines()
    add_predictions(bench, [json.loads(line)["row"] for line in lines], seconds, ended)


def _new_beside(rows: Path) -> Path:
    """The directory ``sweep`` beside ``rows``; an earlier measurement's goes."""
    directory = rows.parent / "sweep"
    if (directory / "trials.jsonl").is_file():
        shutil.rmtree(directory)
    return directory


def run_sweep(bench: Bench, folder: Path, directory: Path) -> str:
    """The command as a user would give it; stopped in time, with what it has recorded until then."""
    model, device, sizes = "llama-3.1-8b", "cuda", ["--num-prompts", "24", "--input-len", "128..512"]
    if bench.dry:
        model, device, sizes = str(folder / "config.json"), "cpu", ["--num-prompts", "2", "--input-len", "8..16"]
        (folder / "config.json").write_text(json.dumps(DRY_CONFIG))
        sizes += ["--device-memory", "300MiB", "--dtype", "float32"]
    axes = [word for pair in (_DRY_AXES if bench.dry else _AXES).items() for word in pair]
    command = [sys.executable, "-m", "kvplan", "sweep", "--model", model, "--device", device, "--load-format", "dummy"]
    command += [*axes, *sizes, "--output-len", "4..8" if bench.dry else "16..32", "--out", str(directory)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    outcome = outcome_of(command, max(1.0, bench.seconds_left() - _SECONDS_TO_SPARE), sys.stderr, env=environment)
    if outcome.startswith("stopped"):
        return "stopped in time"
    if outcome != "exit code 0":
        raise RuntimeError(f"the sweep ended with {outcome}")
    return "complete"


def add_predictions(bench: Bench, rows: list[dict[str, Any]], seconds: float, ended: str) -> None:
    """Bytes per block to the byte and blocks within 2 %, over the rows in which there was a pool."""
    pools = [row for row in rows if row["num_blocks_total"]]
    exact = sum(row["block_bytes"] == row["block_bytes_predicted"] for row in pools)
    errors = [abs(row["num_blocks_predicted"] / row["num_blocks_total"] - 1) for row in pools]
    statuses = dict(Counter(row["status"] for row in rows))
    if not pools:
        raise RuntimeError(f"no trial came to have a pool: {statuses}; the last: {rows[-1:]}")
    common: dict[str, Any] = {
        "goal": 1.0,
        "median_seconds": seconds / max(1, len(rows)),
        "reference": "rows with a pool",
    }
    shape = {"rows": len(rows), "sweep": ended, **statuses}
    bench.add(Row("sweep", "bytes per block predicted exactly", exact, "rows", shape, exact / len(pools), **common))
    near = sum(error <= WITHIN for error in errors)
    shape = {"rows": len(rows), "worst_pct": round(100 * max(errors), 3)}
    bench.add(Row("sweep", "blocks predicted within 2 %", near, "rows", shape, near / len(pools), **common))
