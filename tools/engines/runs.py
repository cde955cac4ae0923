"""A part of the check: one sweep of a real engine, started as a user starts it, and what is left after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.engines.serving.keeper import descendants

KVPLAN = (sys.executable, "-m", "kvplan")


@dataclass(frozen=True, slots=True)
class Part:
    """One sweep. axes: as its options are written."""

    name: str
    model: str
    axes: Mapping[str, str]

    @property
    def folder(self) -> str:
        return self.name.replace(":", "").replace(" ", "-")


def run_part(part: Part, load: Mapping[str, object], python: str, work: Path) -> None:
    """Run it; a part that was begun before is continued."""
    directory = work / part.folder
    if directory.exists():
        words = ["sweep", "--resume", str(directory)]
    else:
        words = ["sweep", *vllm_options(python, part.model, directory), *options(part.axes), *options(load)]
    print(f"{part.name}: kvplan {' '.join(words)}", flush=True)
    subprocess.run([*KVPLAN, *words, "--json"], stdout=subprocess.DEVNULL, check=False)
    left = descendants(os.getpid())
    assert not left, f"processes are left: {left}"


def vllm_options(python: str, model: str, directory: Path) -> list[str]:
    """Of a sweep with dummy weights, without a compiler's warm-up."""
    words = ["--engine", "vllm", "--engine-python", python, "--engine-arg", "enforce-eager"]
    return [*words, "--model", model, "--load-format", "dummy", "--no-rerun", "--out", str(directory)]


def options(given: Mapping[str, object]) -> list[str]:
    """``{"max_num_seqs": "2,8"}`` -> ``["--max-num-seqs", "2,8"]``."""
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """The rows of a run directory, in order; none where it is not there."""
    if not (directory / "trials.jsonl").exists():
        return []
    lines = (directory / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["row"] for line in lines]


def is_finished(directory: Path) -> bool:
    """Whether every trial of a sweep has a row."""
    summary = directory / "summary.json"
    return summary.exists() and not json.loads(summary.read_text(encoding="utf-8"))["interrupted"]
