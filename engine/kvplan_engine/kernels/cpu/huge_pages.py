"""Huge pages for memory that every step reads: fewer TLB misses, which cost most on virtual machines."""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
import weakref
from collections.abc import Sequence

import torch

_PAGE_BYTES = 4096
_HUGE_BYTES = 2 * 1024**2  # of a huge page on x86 and on most aarch64 kernels
_SLAB_BYTES = 32 * _HUGE_BYTES


def advise_huge_pages(tensor: torch.Tensor) -> None:
    """Ask the operating system to back ``tensor`` with huge pages as it is first written. A hint: refusals are ignored.

    Only on Linux, and only where the system leaves the choice to the program (transparent_hugepage/enabled: madvise).
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or not tensor.is_cpu or tensor.nbytes < _HUGE_BYTES:
        return
    start = -(-tensor.data_ptr() // _PAGE_BYTES) * _PAGE_BYTES
    end = (tensor.data_ptr() + tensor.nbytes) // _PAGE_BYTES * _PAGE_BYTES
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise(start, end - start, advice)


def empty_for_weights(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """As ``torch.empty``, for what is kept as long as a model: weights lie beside each other in huge pages.

    On their own, matrices smaller than two huge pages would have none. Their memory is free when nobody holds a tensor
    of the same 64 MiB; until it is written, it takes none.

    MemoryError when the system gives no more.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if not hasattr(mmap, "MADV_HUGEPAGE") or num_bytes == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    return _SLABS.take(num_bytes).view(dtype).view(*shape)


class _Slabs:
    """Hands out memory of the newest slab that somebody still uses, else of a new one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: weakref.ref[mmap.mmap] | None = None
        self._next = self._end = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        """[num_bytes] uint8, which begins on a page."""
        with self._lock:
            mapping = None if self._newest is None else self._newest()
            if mapping is None or self._next + num_bytes > self._end:
                mapping = self._map(max(num_bytes, _SLAB_BYTES))
            taken = torch.frombuffer(mapping, dtype=torch.uint8, count=num_bytes, offset=self._next)
            self._next += -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES
        return taken

    def _map(self, num_bytes: int) -> mmap.mmap:
        whole = -(-num_bytes // _HUGE_BYTES) * _HUGE_BYTES + _HUGE_BYTES
        try:
            mapping = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"{num_bytes / 1024**3:.2f} GiB of memory for weights: {error.strerror}") from error
        everything = torch.frombuffer(mapping, dtype=torch.uint8)
        advise_huge_pages(everything)
        self._newest = weakref.ref(mapping)
        self._next = -everything.data_ptr() % _HUGE_BYTES
        self._end = whole
        return mapping


_SLABS = _Slabs()
