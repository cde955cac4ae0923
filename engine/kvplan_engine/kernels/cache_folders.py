"""Folders that compiled kernels may lie in: the user's cache, else one of this user's alone among temporary files.

A container's home is often read-only, missing, or mounted without the right to execute. What is compiled is then kept
where temporary files are, until these are cleaned. Everybody may write there, so the folder counts only if nobody but
this user can put a file into it: a library that is loaded runs as this user.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kvplan_engine.errors import EngineError
from kvplan_engine.paths import kernel_cache_dir

_SHARED_MEMORY = Path("/dev/shm")


class UnusableFolder(EngineError):
    """A folder that cannot hold compiled kernels. The message says which, and why."""


def kernel_folders() -> Iterator[Path]:
    """The user's cache, then private temporary folders. ``make_usable`` refuses those that cannot hold kernels."""
    with contextlib.suppress(EngineError):  # no home directory
        yield kernel_cache_dir()
    for base in _temporary_bases():
        yield private_folder_in(base)


def make_usable(folder: Path, *, is_for_libraries: bool = True) -> None:
    """Make ``folder`` where it is missing. UnusableFolder if it is not private where it has to be.

    is_for_libraries: also if no library in it could be loaded. Whether it can be written shows when something is: one
    that is read-only may hold the kernels already.
    """
    try:
        if folder.parent in _temporary_bases():
            _make_private(folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
        flags = os.statvfs(folder).f_flag
    except OSError as error:
        raise unusable(folder, error) from error
    if is_for_libraries and flags & getattr(os, "ST_NOEXEC", 0):
        raise UnusableFolder(f"{folder} is mounted noexec, so that no library in it can be loaded")


def unusable(folder: Path, error: OSError) -> UnusableFolder:
    """The refusal of a folder that an operation failed in."""
    return UnusableFolder(f"{folder} cannot be used: {error.strerror or error}")


def private_folder_in(base: Path) -> Path:
    """Where this user's kernels lie below ``base``."""
    return base / f"kvplan-kernels-{os.geteuid()}"


def _temporary_bases() -> list[Path]:
    """Folders of temporary files, the usual one first; shared memory is rarely mounted noexec or full."""
    bases = []
    with contextlib.suppress(FileNotFoundError):  # none that can be written
        bases.append(Path(tempfile.gettempdir()))
    return [*bases, _SHARED_MEMORY] if _SHARED_MEMORY not in bases else bases


def _make_private(folder: Path) -> None:
    """PermissionError if another user could put a file into ``folder``, or put another folder in its place.

    In a folder that all may write, the sticky bit keeps others from renaming what is not theirs.
    """
    base = folder.parent.stat()
    others_write = base.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if base.st_uid not in (0, os.geteuid()) or (others_write and not base.st_mode & stat.S_ISVTX):
        raise PermissionError(0, f"others can rename what lies in {folder.parent}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()  # not what a link points to
    is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    if not is_private:
        raise PermissionError(0, "it is not a directory that this user alone may write")
