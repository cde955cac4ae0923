"""Every buffer that a step writes to, allocated once: no step allocates, and the peak is known beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

import torch

from kvplan_engine.device.allocation import allocating
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
