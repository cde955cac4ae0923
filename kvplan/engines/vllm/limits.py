"""A scheduler class for vLLM (plugin/): a file lowers settings while it runs, another has a line for each step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from kvplan.runs.storage.files import write_whole
from kvplan.runs.trials import TrialSettings

LOWERED: Final = frozenset({"max_num_seqs", "max_num_batched_tokens"})
SCHEDULER: Final = "kvplan_limits.LimitedScheduler"
_PLUGIN: Final = Path(__file__).parent / "plugin"
_FILE: Final = "limits.json"
_STEPS: Final = "steps.txt"


def limited_environment(directory: Path) -> dict[str, str | None]:
    """What a server with the scheduler needs: the plug-in on its path, and nothing else of ours."""
    files = {"KVPLAN_LIMITS_FILE": str(directory / _FILE), "KVPLAN_STEPS_FILE": str(steps_file(directory))}
    return {**plugin_environment(), **files}


def steps_file(directory: Path) -> Path:
    """Where the scheduler writes a line for each step."""
    return directory / _STEPS


def plugin_environment() -> dict[str, str | None]:
    """Where a server, or what it is forked from, finds the plug-in."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(_PLUGIN), os.environ.get("PYTHONPATH"))))}


def write_limits(directory: Path, settings: TrialSettings) -> None:
    """From the next step on, vLLM keeps to these."""
    limits = {name: getattr(settings, name) for name in sorted(LOWERED)}
    write_whole(directory / _FILE, json.dumps(limits) + "\n")
