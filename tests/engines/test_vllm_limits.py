"""The scheduler that lowers limits of a running vLLM: what it takes from its file. vLLM's own is a stand-in."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvplan.engines.vllm import limits
from kvplan.runs.trials import TrialSettings

SETTINGS = TrialSettings(
    gpu_memory_utilization=0.9, max_num_seqs=8, block_size=64, max_model_len=512, max_num_batched_tokens=2048
)


class Scheduler:
    """What the plug-in relies on."""

    def __init__(self) -> None:
        self.max_num_active_reqs, self.max_num_scheduled_tokens = 8, 2048

    def schedule(self) -> tuple[int, int]:
        return self.max_num_active_reqs, self.max_num_scheduled_tokens


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """As vLLM makes it, with its file in ``tmp_path``."""
    parts = ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched", "vllm.v1.core.sched.scheduler")
    for name in parts:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[parts[-1]].Scheduler = Scheduler  # type: ignore[attr-defined]
    environment = limits.limited_environment(tmp_path)
    monkeypatch.setenv("KVPLAN_LIMITS_FILE", str(environment["KVPLAN_LIMITS_FILE"]))
    module_name, _, class_name = limits.SCHEDULER.partition(".")
    file = Path(str(environment["PYTHONPATH"]).split(":", 1)[0]) / f"{module_name}.py"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, class_name)()


def test_limits_are_lowered_and_raised_again_up_to_the_start(scheduler: Any, tmp_path: Path) -> None:
    assert scheduler.schedule() == (8, 2048), "no file, no change"
    limits.write_limits(tmp_path, SETTINGS.with_changes(max_num_seqs=2, max_num_batched_tokens=512))
    assert scheduler.schedule() == (2, 512)
    limits.write_limits(tmp_path, SETTINGS.with_changes(max_num_seqs=64))
    assert scheduler.schedule() == (8, 2048), "never above what memory was carved for"
