"""What planner and engine take to be free: that of the machine, or what the limits of a container leave, if less."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvplan.machine import host
from kvplan_engine.device import process_memory
from kvplan_engine.device import process_memory as engine_groups

MIB = 1024**2
NO_LIMIT = 9223372036854771712  # as cgroup-v1 writes it
Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file of a machine of its own."""
    for module, root in ((host, "_ROOT"), (engine_groups, "_GROUPS")):
        monkeypatch.setattr(module, "_OWN", tmp_path / "own")
        monkeypatch.setattr(module, root, tmp_path / "groups")

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


def available() -> int:
    """In what both packages say."""
    planner = min((room.unused + room.cached for room in host.rooms()), default=-1)
    assert min(engine_groups.available_in_groups(), default=-1) == planner
    return planner


def test_a_machine_without_limits(write: Write) -> None:
    assert available() == -1, "no groups at all"
    write("own", "0::/\n")
    assert available() == -1
    assert host.available_memory_bytes() == pytest.approx(process_memory.available_memory_bytes(), rel=0.05)


@pytest.mark.parametrize("where", ["", "user.slice", "user.slice/job"])
def test_each_group_above_limits_it(write: Write, where: str) -> None:
    write("own", "0::/user.slice/job\n")
    for group in ("", "user.slice", "user.slice/job"):
        write(f"groups/{group}/memory.max", f"{1024 * MIB}\n" if group == where else "max\n")
        write(f"groups/{group}/memory.current", f"{100 * MIB}\n")
        write(f"groups/{group}/memory.stat", f"anon 1\ninactive_file {30 * MIB}\n")
    assert available() == 954 * MIB
    assert host.available_memory_bytes() == process_memory.available_memory_bytes() == 954 * MIB
    assert host.free_memory_bytes() == 924 * MIB, "without giving up what is cached"


def test_the_first_version_of_groups(write: Write) -> None:
    write("own", "5:cpu:/job\n4:memory:/job\n0::/job\n")
    for group, limit in (("memory/job", 512 * MIB), ("memory", NO_LIMIT)):
        write(f"groups/{group}/memory.limit_in_bytes", f"{limit}\n")
        write(f"groups/{group}/memory.usage_in_bytes", f"{600 * MIB}\n")
        write(f"groups/{group}/memory.stat", f"inactive_file 1\ntotal_inactive_file {8 * MIB}\n")
    assert available() == 8 * MIB, "used beyond its limit"
