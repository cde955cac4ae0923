"""A small sweep over a tiny model with the fake worker, for tests of everything around the engine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny_configs import gpt2_config

from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import SweepPlan, make_plan
from kvplan.sweeps.progress import SilentProgress

FAKE_WORKER = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))

TINY_CONFIG: dict[str, Any] = gpt2_config(
    n_positions=256,
    n_ctx=256,
    activation_function="gelu_new",
    layer_norm_epsilon=1e-05,
    bos_token_id=0,
    eos_token_id=0,
    tie_word_embeddings=True,
)


def write_tiny_model(directory: Path) -> Path:
    """A config.json of a GPT-2 with 26 thousand parameters; returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "config.json"
    if not path.exists():  # several processes may share it
        path.write_text(json.dumps(TINY_CONFIG))
    return path


def tiny_plan(directory: Path, axes: dict[str, str] | None = None, **options: Any) -> SweepPlan:
    """A plan for the tiny model on the CPU device with 1 GiB and eight short requests."""
    defaults: dict[str, Any] = {
        "device": "cpu", "device_memory": "1GiB", "num_prompts": 8, "input_len": "4..12", "output_len": "2..6",
        "trial_timeout": 30.0, "rerun": False,
    }  # fmt: skip
    model = write_tiny_model(directory / "tiny-model")
    return make_plan(SweepOptions(model=str(model), axes=axes or {"max_num_seqs": "1..8*2"}, **(defaults | options)))


class Notes(SilentProgress):
    """Keeps what a sweep notes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def is_running(pid: int) -> bool:
    """A process that has ended and waits to be collected does not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(is_true: Callable[[], object]) -> None:
    """Wait a minute at most."""
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def assert_all_gone(pids: set[int]) -> None:
    """A worker whose parent died reads the end of its stdin and leaves; give it a moment."""
    wait_until(lambda: not any(map(is_running, pids)))
