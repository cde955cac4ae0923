"""Limits of memory on groups of processes, as containers have them (cgroups(7), both versions)."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


class MemoryLeft(NamedTuple):
    """What a group's limit leaves, in bytes. cached: of files, which the system gives up when memory is needed."""

    unused: int
    cached: int


def rooms() -> list[MemoryLeft]:
    """Return what is left of each group with a limit, from this process's own to the root."""
    found = []
    for group, (limit_file, used_file, cached_field) in _groups():
        limit, used = _count(group / limit_file), _count(group / used_file)
        if limit is not None and used is not None:
            found.append(MemoryLeft(max(0, limit - used), _field(group / "memory.stat", cached_field)))
    return found


def _groups() -> list[tuple[Path, tuple[str, str, str]]]:
    """With the names of their files, and of the field for cached memory."""
    try:
        lines = [line.split(":", 2) for line in _OWN.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, path in lines:
        if not controllers:
            root, names = _ROOT, ("memory.max", "memory.current", "inactive_file")
        elif controllers == "memory":
            root = _ROOT / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = root / path.lstrip("/")
        found += [(group, names) for group in (own, *own.parents[: len(own.relative_to(root).parts)])]
    return found


def _count(path: Path) -> int | None:
    """None where the file is not there, or says that there is no limit."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _field(path: Path, name: str) -> int:
    """0 where it is not there."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
