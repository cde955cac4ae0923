"""Memory that is written once before another process needs it, so that its first writes there are quick.

A host may take back what a virtual machine has freed (free page reporting, balloons), and gives it again page by page
as it is written: 2 ms a MiB where that was measured, 0.12 for memory that the host still backs. What one process of the
machine has written and freed is backed for the next one, for some seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import threading
from typing import Final

from kvplan.machine.host import free_memory_bytes

_PIECE_BYTES: Final = 8 * 1024**2
_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE of Linux 5.14; before that it is refused, and nothing is written
_SHARE: Final = 0.5  # of the memory that is free; nothing else must feel this


class WarmMemory:
    """Writes ``num_bytes`` of memory in a thread of its own, at most half of what is free, until ``release``.

    Linux alone; elsewhere, and where the system refuses, it does nothing.
    """

    def __init__(self, num_bytes: int) -> None:
        wanted = min(num_bytes, int(_SHARE * free_memory_bytes())) // _PIECE_BYTES * _PIECE_BYTES
        self.num_written = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(wanted,), name="warm-memory", daemon=True)
        if wanted > 0 and sys.platform == "linux":
            self._thread.start()

    def release(self) -> None:
        """Stop, and give everything back before this returns. May be called again."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _hold(self, num_bytes: int) -> None:
        try:
            mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError):
            return
        with mapping:
            with contextlib.suppress(OSError):  # a system without huge pages
                mapping.madvise(mmap.MADV_HUGEPAGE)
            self._write(mapping)
            self._stopped.wait()

    def _write(self, mapping: mmap.mmap) -> None:
        """mmap's own madvise would keep the interpreter waiting."""
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        view = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(view)
        while self.num_written < len(mapping) and not self._stopped.is_set():
            if advise(address + self.num_written, _PIECE_BYTES, _POPULATE_WRITE):
                return
            self.num_written += _PIECE_BYTES
