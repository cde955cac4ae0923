"""Huge pages for memory that every step reads: fewer TLB misses, which cost most on virtual machines."""

from __future__ import annotations

import ctypes
import mmap

import torch

_PAGE_BYTES = 4096
_LEAST_BYTES = 2 * 1024**2  # of a huge page on x86 and on most aarch64 kernels


def advise_huge_pages(tensor: torch.Tensor) -> None:
    """Ask the operating system to back ``tensor`` with huge pages as it is first written. A hint: refusals are ignored.

    Only on Linux, and only where the system leaves the choice to the program (transparent_hugepage/enabled: madvise).
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or not tensor.is_cpu or tensor.nbytes < _LEAST_BYTES:
        return
    start = -(-tensor.data_ptr() // _PAGE_BYTES) * _PAGE_BYTES
    end = (tensor.data_ptr() + tensor.nbytes) // _PAGE_BYTES * _PAGE_BYTES
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise(start, end - start, advice)
