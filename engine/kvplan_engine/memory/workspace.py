"""Every buffer that a step writes to, allocated once: no step allocates, and the peak is known beforehand."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterator
from copy import copy

import torch

from kvplan_engine.device.allocation import allocating
from kvplan_engine.device.process_memory import available_memory_bytes
from kvplan_engine.errors import OutOfDeviceMemory
from kvplan_engine.kernels.cpu.huge_pages import advise_huge_pages
from kvplan_engine.memory.breakdown import BufferSpec


class Workspace:
    """The buffers of the largest step, by name; ``breakdown.workspace_buffers`` has their shapes.

    OutOfDeviceMemory(phase="kv_init") when the allocation fails.
    """

    def __init__(self, specs: list[BufferSpec], device: torch.device) -> None:
        self.num_bytes = sum(spec.num_bytes for spec in specs)
        with allocating("kv_init", self.num_bytes):
            self._memory = torch.empty(self.num_bytes, dtype=torch.uint8, device=device)
        self._buffers: dict[str, torch.Tensor] = {}
        start = 0
        for spec in specs:
            dtype = getattr(torch, spec.dtype)
            count = torch.Size(spec.held_shape).numel()
            raw = self._memory[start : start + count * dtype.itemsize]
            self._buffers[spec.name] = raw.view(dtype).view(spec.held_shape)[..., : spec.shape[-1]]
            start += spec.num_bytes

    def touch(self) -> None:
        """Write to every page, so that the operating system commits it now and not during a step."""
        self._memory.zero_()

    def __iter__(self) -> Iterator[str]:
        """The buffers' names."""
        return iter(self._buffers)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._buffers[name]

    def scratch(self, *shapes: tuple[int, int]) -> list[torch.Tensor]:
        """Adjacent contiguous matrices [rows, columns] in the scratch buffer, overwriting whatever used it before."""
        flat = self._buffers["scratch"].view(-1)
        views, start = [], 0
        for rows, columns in shapes:
            views.append(flat[start : start + rows * columns].view(rows, columns))
            start += rows * columns
        return views

    def part(self, prefix: str) -> Workspace:
        """The buffers whose names begin with ``prefix``, by the rest of their names."""
        part = copy(self)
        part._buffers = {
            name.removeprefix(prefix): buffer for name, buffer in self._buffers.items() if name.startswith(prefix)
        }
        return part


# The KV pool: one allocation, divided into planes, in each of which every block has an equal part of its bytes.
#
# Host memory for blocks of KV that are swapped or cached: of exactly the size asked for, and pinned for a GPU.


def allocate_kv_pool(num_blocks: int, block_bytes: int, device: torch.device, num_planes: int = 1) -> torch.Tensor:
    """[num_planes, num_blocks, block_bytes / num_planes] uint8. What lies where in a block is the layout's
    (``models/kv_pool.py``); ``num_planes`` divides its bytes.

    OutOfDeviceMemory(phase="kv_init") when the allocation fails.
    """
    with allocating("kv_init", num_blocks * block_bytes):
        pool = torch.empty((num_planes, num_blocks, block_bytes // num_planes), dtype=torch.uint8, device=device)
    advise_huge_pages(pool)
    return pool


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
