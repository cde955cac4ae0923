"""The scheduler class of a vLLM that stays: what it takes from its file, what it tells. vLLM's own is a stand-in."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvplan.engines.steps import EngineStep, StepLog, steps_row
from kvplan.engines.vllm import adapter
from kvplan.runs.trials import TrialSettings

SETTINGS = TrialSettings(
    gpu_memory_utilization=0.9, max_num_seqs=8, block_size=64, max_model_len=512, max_num_batched_tokens=2048
)


class Scheduler:
    """What the plug-in relies on."""

    def __init__(self) -> None:
        self.max_num_active_reqs, self.max_num_scheduled_tokens = 8, 2048
        self.kv_cache_manager = SimpleNamespace(usage=0.25)
        self.counts = (3, 1)
        self.output = SimpleNamespace(total_num_scheduled_tokens=40, preempted_req_ids=None)

    def schedule(self) -> SimpleNamespace:
        return self.output

    def get_request_counts(self) -> tuple[int, int]:
        return self.counts

    def update_from_output(self) -> str:
        self.kv_cache_manager.usage = 0.0  # what ended has given its blocks back
        return "outputs"


def limits_of(scheduler: Any) -> tuple[int, int]:
    """Those that a step keeps to."""
    scheduler.schedule()
    return scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """As vLLM makes it, with its file in ``tmp_path``."""
    parts = ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched", "vllm.v1.core.sched.scheduler")
    for name in parts:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[parts[-1]].Scheduler = Scheduler  # type: ignore[attr-defined]
    environment = adapter.limited_environment(tmp_path)
    for name in ("KVPLAN_LIMITS_FILE", "KVPLAN_STEPS_FILE"):
        monkeypatch.setenv(name, str(environment[name]))
    module_name, _, class_name = adapter.SCHEDULER.partition(".")
    file = Path(str(environment["PYTHONPATH"]).split(":", 1)[0]) / f"{module_name}.py"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = getattr(module, class_name)()
    yield made
    made._kvplan_steps.close()


def test_limits_are_lowered_and_raised_again_up_to_the_start(scheduler: Any, tmp_path: Path) -> None:
    assert limits_of(scheduler) == (8, 2048), "no file, no change"
    adapter.write_limits(tmp_path, SETTINGS.with_changes(max_num_seqs=2, max_num_batched_tokens=512))
    assert limits_of(scheduler) == (2, 512)
    adapter.write_limits(tmp_path, SETTINGS.with_changes(max_num_seqs=64))
    assert limits_of(scheduler) == (8, 2048), "never above what memory was carved for"


def test_a_step_is_told_as_it_was_scheduled_once_its_tokens_are_there(scheduler: Any, tmp_path: Path) -> None:
    log = StepLog(adapter.steps_file(tmp_path))
    scheduler.schedule()
    assert log.steps_from(0) == [], "it still runs"
    assert scheduler.update_from_output() == "outputs"
    before = log.end()
    scheduler.output = SimpleNamespace(total_num_scheduled_tokens=0, preempted_req_ids=None)
    scheduler.schedule()
    scheduler.update_from_output()
    assert log.end() == before, "nothing was computed"
    scheduler.kv_cache_manager.usage, scheduler.counts = 0.5, (2, 2)
    scheduler.output = SimpleNamespace(total_num_scheduled_tokens=2, preempted_req_ids={"a", "b"})
    scheduler.schedule()
    scheduler.update_from_output()
    first, second = log.steps_from(0)
    assert (first.num_running, first.num_waiting, first.kv_usage, first.num_tokens) == (3, 1, 0.25, 40)
    assert log.steps_from(before) == [second]
    assert (second.num_running, second.num_waiting, second.kv_usage, second.num_preempted) == (2, 2, 0.5, 2)
    assert first.seconds >= 0


def test_a_line_that_is_not_whole_yet_is_left_for_later(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "steps.txt")
    assert (log.end(), log.steps_from(0)) == (0, [])
    log.path.write_text("0.5 1 0 0.1 1 0\n0.5 1 0 0.")
    assert log.steps_from(0) == [EngineStep(0.5, 1, 0, 0.1, 1, 0)]


def test_columns_of_steps_weigh_them_by_their_time() -> None:
    steps = [EngineStep(3.0, 2, 5, 0.2, 64, 0), EngineStep(1.0, 4, 0, 0.6, 4, 1)]
    row = steps_row(steps)
    assert row["kv_usage_mean"] == pytest.approx(0.3)
    assert (row["kv_usage_p95"], row["kv_usage_max"]) == (0.6, 0.6)
    assert (row["num_steps"], row["max_running"], row["max_waiting"], row["num_preemptions"]) == (2, 4, 5, 1)
    assert steps_row([]) == {}
