"""Memory written before a worker needs it: written indeed, given back at once, never more than half of what is free."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sweep_helpers import tiny_plan

from kvplan.machine import warm_memory
from kvplan.machine.warm_memory import WarmMemory, free_memory_bytes

MIB = 1024**2
NO_LIMIT = 9223372036854771712  # as cgroup-v1 writes it

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked to write memory ahead")


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@linux
def test_memory_is_written_and_given_back() -> None:
    before = resident_bytes()
    memory = WarmMemory(70 * MIB)
    wait_until(lambda: memory.num_written == 64 * MIB)
    assert resident_bytes() - before > 60 * MIB, "whole pieces of 8 MiB"
    memory.release()
    assert resident_bytes() - before < 8 * MIB
    memory.release()


@linux
def test_it_stops_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_memory, "free_memory_bytes", lambda: 1 << 50)
    memory = WarmMemory(1 << 40)  # more than there is
    memory.release()
    assert memory.num_written < 1 << 36


def test_nothing_is_written_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    WarmMemory(0).release()
    monkeypatch.setattr(warm_memory, "free_memory_bytes", lambda: 12 * MIB)
    memory = WarmMemory(1 << 30)
    memory.release()
    assert memory.num_written == 0, "half of what is free is less than a piece"


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a file of a machine of its own, which has 8 GiB free and no control groups yet."""
    monkeypatch.setattr(warm_memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(warm_memory, "_GROUPS", tmp_path / "cgroup")

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/meminfo", f"MemTotal: 1 kB\nMemFree: {8 * MIB} kB\nMemAvailable: 1 kB\n")
    return write


def test_what_is_free_is_not_what_files_fill(system: Callable[[str, str], None]) -> None:
    assert free_memory_bytes() == 8 * 1024 * MIB
    system("proc/self/cgroup", "0::/\n")
    assert free_memory_bytes() == 8 * 1024 * MIB, "a root without a limit"


@pytest.mark.parametrize("where", ["", "user.slice", "user.slice/job"])
def test_each_control_group_above_limits_it(system: Callable[[str, str], None], where: str) -> None:
    system("proc/self/cgroup", "0::/user.slice/job\n")
    for group in ("user.slice", "user.slice/job"):
        system(f"cgroup/{group}/memory.max", "max\n")
        system(f"cgroup/{group}/memory.current", f"{100 * MIB}\n")
    system(f"cgroup/{where}/memory.max", f"{1024 * MIB}\n")
    system(f"cgroup/{where}/memory.current", f"{100 * MIB}\n")
    assert free_memory_bytes() == 924 * MIB


def test_the_first_version_of_control_groups(system: Callable[[str, str], None]) -> None:
    system("proc/self/cgroup", "5:cpu:/job\n4:memory:/job\n0::/job\n")
    for group, limit in (("memory/job", 512 * MIB), ("memory", NO_LIMIT)):
        system(f"cgroup/{group}/memory.limit_in_bytes", f"{limit}\n")
        system(f"cgroup/{group}/memory.usage_in_bytes", f"{600 * MIB}\n")
    assert free_memory_bytes() == 0, "used beyond its limit"


def test_what_a_first_trial_writes(tmp_path: Path) -> None:
    """Weights, and the blocks of the longest requests that run at once, as far as the pool has them."""
    plan = tiny_plan(tmp_path, {"max_num_seqs": "2"})
    settings = plan.trials[0].settings
    memory = plan.predictor.memory(settings)
    lengths = sorted(each.num_prompt_tokens + each.num_output_tokens for each in plan.predictor.requests)
    tokens = sum(lengths[-2:])
    assert memory.num_blocks * memory.block_bytes > tokens * memory.layout.bytes_per_token
    assert plan.first_bytes == memory.weight_bytes + tokens * memory.layout.bytes_per_token
