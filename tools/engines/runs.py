"""A part of the check: one sweep of a real engine, started as a user starts it, and what is left after it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvplan.engines.serving.keeper import descendants
from sweeping import KVPLAN, options


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


def is_finished(directory: Path) -> bool:
    """Whether every trial of a sweep has a row."""
    summary = directory / "summary.json"
    return summary.exists() and not json.loads(summary.read_text(encoding="utf-8"))["interrupted"]
