"""Host memory for blocks of KV that are swapped or cached: of exactly the size asked for, and pinned for a GPU."""

from __future__ import annotations

import mmap
import weakref

import torch

from kvplan_engine.device.allocation import allocating
from kvplan_engine.device.process_memory import available_memory_bytes
from kvplan_engine.errors import OutOfDeviceMemory
from kvplan_engine.kernels.cpu.huge_pages import advise_huge_pages


class HostPool:
    """blocks [num_slots, block_bytes] uint8, in host memory.

    is_pinned: registered with CUDA, so that copies run at the link's full speed and kernels reach it; the system then
    backs all of it at once, otherwise each page when it is first written. torch's own pinned memory would be rounded up
    to a power of two, and kept by the process for good.
    OutOfDeviceMemory(phase="kv_host") when there is not enough memory.
    """

    def __init__(self, num_slots: int, block_bytes: int, *, is_pinned: bool) -> None:
        num_bytes = num_slots * block_bytes
        _refuse_beyond_free(num_bytes)
        self._unpin: weakref.finalize | None = None
        with allocating("kv_host", num_bytes):
            if not is_pinned:
                self.blocks = torch.empty((num_slots, block_bytes), dtype=torch.uint8)
                return
            mapping = _map(num_bytes)
            self.blocks = torch.frombuffer(mapping, dtype=torch.uint8, count=num_bytes).view(num_slots, block_bytes)
            advise_huge_pages(self.blocks)
            address = self.blocks.data_ptr()
            # 0: mapped and portable by itself, as addresses are unified
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(address, num_bytes, 0))
        self._unpin = weakref.finalize(self, _unregister, address, mapping)  # the mapping lives until then
        self._unpin.atexit = False  # the system takes everything back

    def close(self) -> None:
        """Unpin the memory; no copy to or from it may follow. It is free once nobody holds ``blocks``."""
        if self._unpin is not None:
            self._unpin()


def _refuse_beyond_free(num_bytes: int) -> None:
    """A system that promises more than it has would end the process later, as the pages are written."""
    free_bytes = available_memory_bytes()
    if num_bytes > free_bytes:
        raise OutOfDeviceMemory(
            f"swapped and cached KV would take {num_bytes / 1024**3:,.2f} GiB of host memory, of which "
            f"{free_bytes / 1024**3:,.2f} GiB is free.",
            phase="kv_host",
            requested_bytes=num_bytes,
            free_bytes=free_bytes,
            hint="lower swap_space or kv_host_cache_bytes",
        )


def _map(num_bytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes / 1024**3:.2f} GiB of host memory: {error.strerror}") from error


def _unregister(address: int, _mapping: mmap.mmap) -> None:
    """Waits for copies that still run. What it returns does not matter: a context that is lost has unpinned it."""
    torch.cuda.cudart().cudaHostUnregister(address)
