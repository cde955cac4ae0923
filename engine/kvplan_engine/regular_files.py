"""Files that others may have put where they lie: a pipe would be waited for, a device has no end. No torch."""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path


class NotRegular(OSError):
    """Raised for a directory, a pipe, a socket or a device where a file should be."""


def open_regular(path: Path, *, follows_links: bool = True) -> FileIO:
    """Open a regular file to read, unbuffered. OSError where there is none, NotRegular where it is something else."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follows_links else os.O_NOFOLLOW)
    file = os.fdopen(os.open(path, flags), "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotRegular("not a regular file")
    return file
