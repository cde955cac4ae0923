"""Writing files so that a crash leaves them whole: replaced at once, or appended to and synced."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from kvplan.errors import KvplanError


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file so that a reader sees the old or the new one, never half of it. KvplanError if it cannot be."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=_open_no_link) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):  # there is none where the directory is missing or a file
            temporary.unlink()
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "make room on its disk" if is_full else f"check that {path.parent} can be written to"
        raise KvplanError(f"{path} could not be written: {error.strerror}.", hint=hint) from error


def _open_no_link(path: str, flags: int) -> int:
    """A directory may be anybody's: what is written must not go where a link in it points."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte, unbuffered, so that nothing is left to be written by a later close. OSError otherwise."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_directory(directory: Path) -> None:
    """A new file's name must outlive a crash of the machine, as its content does."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
