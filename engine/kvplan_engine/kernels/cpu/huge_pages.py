"""Huge pages for memory that every step reads: fewer TLB misses, which cost most on virtual machines."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from functools import cache

import torch

_PAGE_BYTES = 4096
_HUGE_BYTES = 2 * 1024**2  # of a huge page on x86 and on most aarch64 kernels
_REGION_BYTES = 128 * _HUGE_BYTES
_PROT_NONE = 0
_Region = ctypes.Array[ctypes.c_uint8]


def advise_huge_pages(tensor: torch.Tensor) -> None:
    """Ask the operating system to back ``tensor`` with huge pages as it is first written. A hint: refusals are ignored.

    Only on Linux, and only where the system leaves the choice to the program (transparent_hugepage/enabled: madvise).
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or not tensor.is_cpu or tensor.nbytes < _HUGE_BYTES:
        return
    start = _rounded_up(tensor.data_ptr(), _PAGE_BYTES)
    end = (tensor.data_ptr() + tensor.nbytes) // _PAGE_BYTES * _PAGE_BYTES
    _library().madvise(start, end - start, advice)


def empty_for_weights(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Allocate as ``torch.empty`` does, for what is kept as long as a model: weights lie side by side in huge pages.

    A matrix smaller than two huge pages that is mapped alone may have none. The memory of a region (256 MiB, or one
    larger weight) is free when nobody holds a tensor of it. What is mapped is what was asked for, rounded up to a huge
    page once, not for each weight.

    MemoryError when the system gives no more.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if not hasattr(mmap, "MADV_HUGEPAGE") or num_bytes == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    return _REGIONS.take(num_bytes).view(dtype).view(*shape)


class _Regions:
    """Hands out memory of the newest region that somebody still uses, else of a new one.

    A region is address space at first, and becomes memory by whole huge pages, as far as it has been handed out: the
    limit of a process's memory counts what may be written, and a huge page is one only if all of it is.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: weakref.ref[_Region] | None = None
        self._next = self._writable = self._end = 0  # offsets

    def take(self, num_bytes: int) -> torch.Tensor:
        """[num_bytes] uint8, which begins on a page."""
        with self._lock:
            region = None if self._newest is None else self._newest()
            if region is None or self._next + num_bytes > self._end:
                region = self._reserve(max(num_bytes, _REGION_BYTES))
            taken = torch.frombuffer(region, dtype=torch.uint8, count=num_bytes, offset=self._next)
            after = self._next + num_bytes
            if after > self._writable:
                more = _rounded_up(after - self._writable, _HUGE_BYTES)
                _make_writable(taken.data_ptr() - self._next + self._writable, more)
                self._writable += more
            self._next = _rounded_up(after, _PAGE_BYTES)
        return taken

    def _reserve(self, num_bytes: int) -> _Region:
        """Address space for so many bytes, beginning with a huge page."""
        whole = _rounded_up(num_bytes, _HUGE_BYTES) + _HUGE_BYTES
        address = _library().mmap(None, whole, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if address == ctypes.c_void_p(-1).value:
            raise MemoryError(f"no address space for {num_bytes / 1024**3:.2f} GiB of weights")
        region: _Region = (ctypes.c_uint8 * whole).from_address(address)
        weakref.finalize(region, _library().munmap, address, whole).atexit = False  # the system takes everything back
        advise_huge_pages(torch.frombuffer(region, dtype=torch.uint8))
        self._newest = weakref.ref(region)
        self._next = self._writable = -address % _HUGE_BYTES
        self._end = self._next + _rounded_up(num_bytes, _HUGE_BYTES)
        return region


def _rounded_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _make_writable(address: int, num_bytes: int) -> None:
    if _library().mprotect(address, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE):
        raise MemoryError(f"{num_bytes / 1024**3:.2f} GiB of memory for weights: {os.strerror(ctypes.get_errno())}")


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    memory, size, flags = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.argtypes, library.mmap.restype = (memory, size, flags, flags, flags, ctypes.c_long), memory
    library.munmap.argtypes = (memory, size)
    library.mprotect.argtypes = library.madvise.argtypes = (memory, size, flags)
    return library


_REGIONS = _Regions()
