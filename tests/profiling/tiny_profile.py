"""A profile of a model with 26 thousand parameters, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_configs import gpt2_config

from kvplan.profiling.plan import make_profile_plan
from kvplan.profiling.session import ProfileOutcome, new_directory, run_profile
from kvplan.sweeps.options import SweepOptions

TINY_CONFIG: dict[str, Any] = gpt2_config(
    n_positions=256, activation_function="gelu_new", bos_token_id=0, eos_token_id=0
)


def write_tiny_model(directory: Path) -> Path:
    """Its config.json; returns the path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "config.json"
    path.write_text(json.dumps(TINY_CONFIG))
    return path


def profile_tiny_model(directory: Path, axes: dict[str, str], **given: Any) -> ProfileOutcome:
    """Run it in ``directory / "run"`` on the CPU."""
    model = write_tiny_model(directory / "model")
    defaults: dict[str, Any] = {"device": "cpu", "num_prompts": 2, "input_len": "8", "output_len": "4"}
    plan = make_profile_plan(SweepOptions(model=str(model), axes=axes, **(defaults | given)))
    return run_profile(plan, new_directory(directory / "run"), lambda event: None)
