"""Memory written before a worker needs it: written indeed, given back at once, never more than half of what is free."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from sweep_helpers import tiny_plan, wait_until

from kvplan.machine import warm_memory
from kvplan.machine.warm_memory import WarmMemory

MIB = 1024**2

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked to write memory ahead")


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine has free at the moment decides nothing."""
    monkeypatch.setattr(warm_memory, "free_memory_bytes", lambda: 1 << 50)


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@linux
@pytest.mark.usefixtures("plenty")
def test_memory_is_written_and_given_back() -> None:
    before = resident_bytes()
    memory = WarmMemory(70 * MIB)
    wait_until(lambda: memory.num_written == 64 * MIB)
    assert resident_bytes() - before > 60 * MIB, "whole pieces of 8 MiB"
    memory.release()
    assert resident_bytes() - before < 8 * MIB
    memory.release()


@linux
@pytest.mark.usefixtures("plenty")
def test_it_stops_where_it_is() -> None:
    memory = WarmMemory(1024 * MIB)
    wait_until(lambda: memory.num_written > 0)
    memory.release()
    written = memory.num_written
    assert 0 < written < 1024 * MIB
    time.sleep(0.02)
    assert memory.num_written == written


def test_nothing_is_written_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    WarmMemory(0).release()
    monkeypatch.setattr(warm_memory, "free_memory_bytes", lambda: 12 * MIB)
    memory = WarmMemory(1 << 30)
    memory.release()
    assert memory.num_written == 0, "half of what is free is less than a piece"


def test_what_a_first_trial_writes(tmp_path: Path) -> None:
    """Weights, and the blocks of the longest requests that run at once, as far as the pool has them."""
    plan = tiny_plan(tmp_path, {"max_num_seqs": "2"})
    settings = plan.trials[0].settings
    memory = plan.predictor.memory(settings)
    lengths = sorted(each.num_prompt_tokens + each.num_output_tokens for each in plan.predictor.requests)
    tokens = sum(lengths[-2:])
    assert memory.num_blocks * memory.block_bytes > tokens * memory.layout.bytes_per_token
    assert plan.first_bytes == memory.weight_bytes + tokens * memory.layout.bytes_per_token
