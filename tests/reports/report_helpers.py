"""Run directories for the report tests, made from the sweep's sample rows."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import sample_rows

from kvplan.runs.storage.reader import FinishedTrial, Run, load_run, trial_frame

MEASURED = ("ok", "queued", "preempted")


def sample_directory(directory: Path) -> Path:
    return sample_rows.write_sample_directory(directory)


def records() -> list[dict]:
    return copy.deepcopy(sample_rows.sample_records())


def failed_records() -> list[dict]:
    return [record for record in records() if record["row"]["status"] not in MEASURED]


def write_trials(directory: Path, kept: Iterable[dict]) -> Path:
    """A directory with trials.jsonl alone, as a killed sweep may leave it."""
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in kept)
    (directory / "trials.jsonl").write_text(text, encoding="utf-8")
    return directory


def record(number: int, seats: int, throughput: float | None, **cells: Any) -> dict[str, Any]:
    """A trial of ``seats`` sequences in few columns; without a throughput it found no room for a pool."""
    row = {
        "trial_id": f"t{number}",
        "trial_number": number,
        "run_number": 1,
        "status": "ok" if throughput else "oom_kv_init",
        "model_id": "llama-3.1-8b",
        "workload": "8 requests, 64 in, 32 out",
        "gpu_memory_utilization": 0.9,
        "block_size": 16,
        "max_model_len": 512,
        "tensor_parallel_size": 1,
        "max_num_seqs": seats,
        "max_running": seats,
        "output_throughput": throughput,
        "median_tpot_ms": None if throughput is None else 1000 * seats / throughput,
    }
    return {"schema": "kvplan.trial/1", "row": row | cells, "series": None}


def sample_run(directory: Path) -> Run:
    return load_run(sample_directory(directory))


def trial(**cells: object) -> FinishedTrial:
    """A measured trial with the given cells."""
    row = {"status": "ok", "output_throughput": 100.0, "trial_id": "t", "run_number": 1, "median_tpot_ms": 20.0}
    return FinishedTrial(row | cells)


def frame(*trials: FinishedTrial) -> pd.DataFrame:
    """The trials as a run holds them."""
    return trial_frame(trials)
