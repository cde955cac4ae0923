"""What limits on groups of processes leave of memory, as containers have them (cgroups(7), both versions).

The planner reads the same for itself (kvplan/machine/control_groups.py): neither package imports the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class _Files(NamedTuple):
    """Where a version keeps the groups, their files, and the field of ``memory.stat`` for files that are cached."""

    root: Path
    limit: str
    used: str
    cached: str


_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def available_in_groups() -> list[int]:
    """Bytes that each group with a limit can still have, from this process's own to the root."""
    try:
        lines = [line.split(":", 2) for line in _OWN.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return []
    second = _Files(_GROUPS, "memory.max", "memory.current", "inactive_file ")
    first = _Files(_GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
    files_of = {"": second, "memory": first}
    found = []
    for _, controllers, path in lines:
        if controllers in files_of:
            files = files_of[controllers]
            own = files.root / path.lstrip("/")
            groups = (own, *own.parents[: len(own.relative_to(files.root).parts)])
            found += [room for group in groups if (room := _available_in(group, files)) is not None]
    return found


def _available_in(group: Path, files: _Files) -> int | None:
    """None where there is no limit. Cached files are given up when memory is needed."""
    try:
        limit, used = (int((group / name).read_text(encoding="ascii")) for name in (files.limit, files.used))
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    cached = next((int(line.split()[1]) for line in lines if line.startswith(files.cached)), 0)
    return max(0, limit - used) + cached
