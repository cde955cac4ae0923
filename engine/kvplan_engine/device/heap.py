"""The C library's heap, while weights are loaded.

glibc maps large allocations one by one and unmaps them when they are freed; smaller ones share a heap, whose holes stay
with the process. What counts as large grows with what has been freed, up to 32 MiB: after the first tensors of a model
on their way into their format, all others lie in that heap, between parts of weights that stay. A model of 1 B weights
in int8 left 70 MiB of holes so, in int4 180 MiB, which the KV pool then lacked.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGE_WHILE_LOADING = 1024**2
# As far as glibc itself raises them on a machine of 64 bits (DEFAULT_MMAP_THRESHOLD_MAX; twice that is kept untrimmed),
# which steps that allocate need: mapping a tensor anew for each of them costs more than its arithmetic.
_LARGE_WHILE_RUNNING = 32 * 1024**2


def heap_options() -> Callable[[int, int], int] | None:
    """glibc's mallopt; None with another C library."""
    return getattr(ctypes.CDLL(None), "mallopt", None) if "glibc" in platform.libc_ver() else None


@contextmanager
def large_tensors_apart() -> Iterator[None]:
    """Within, a tensor of 1 MiB or more is mapped by itself, and leaves nothing behind when it is freed.

    With another C library than glibc nothing is changed.
    """
    set_option = heap_options()
    if set_option is None:
        yield
        return
    set_option(_MMAP_THRESHOLD, _LARGE_WHILE_LOADING)
    try:
        yield
    finally:
        set_option(_MMAP_THRESHOLD, _LARGE_WHILE_RUNNING)
        set_option(_TRIM_THRESHOLD, 2 * _LARGE_WHILE_RUNNING)
