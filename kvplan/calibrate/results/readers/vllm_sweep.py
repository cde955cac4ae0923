"""``vllm bench sweep serve``: a folder for each combination, with a result of ``vllm bench serve`` for each run.

The options of the server and of the load that a combination changed stand in the result's file beside its figures
(vllm/benchmarks/sweep/serve.py, 0.32 and 0.33 read). A run that failed leaves ``run=N.failure.json``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvplan.calibrate.results.outcome import Results
from kvplan.calibrate.results.readers.fields import objects_of, read_json
from kvplan.calibrate.results.readers.vllm_serve import is_vllm_serve, read_vllm_serve


def run_files(directory: Path) -> list[Path]:
    """Results of runs in a combination's folder, an experiment's, or the ``--output-dir`` of several; none deeper."""
    return _files(directory, "run=*.json")


def _files(directory: Path, pattern: str) -> list[Path]:
    return sorted(path for depth in ("", "*/", "*/*/") for path in directory.glob(depth + pattern))


def is_vllm_sweep(directory: Path) -> bool:
    return bool(run_files(directory))


def read_vllm_sweep(directory: Path) -> Results:
    """All runs of the folder; warm-ups and summaries are not runs. Failed ones are counted."""
    found = Results()
    for path in run_files(directory):
        if path.name.endswith(".failure.json"):
            found.excluded["the benchmark failed"] += 1
            continue
        for document in objects_of(read_json(path)) or ({},):
            found.add(_read_run(document, str(path)))
    for _ in _files(directory, "SERVE-*-failure.json"):
        found.excluded["the server did not start"] += 1
    return found


def _read_run(document: Mapping[str, Any], source: str) -> Results:
    if is_vllm_serve(document):
        return read_vllm_serve({"engine": "vllm", **document}, source)
    return Results(excluded=Counter(["no result of a served load"]))
