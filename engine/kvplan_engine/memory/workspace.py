"""Every buffer that a step writes to, allocated once: no step allocates, and the peak is known beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
        return _adjacent(self._buffers["scratch"], shapes)


class WorkspacePart:
    """The buffers of a workspace whose names begin with ``prefix``, as a workspace of their own."""

    def __init__(self, workspace: Workspace, prefix: str) -> None:
        self._workspace, self._prefix = workspace, prefix

    def __iter__(self) -> Iterator[str]:
        """The buffers' names."""
        return (name.removeprefix(self._prefix) for name in self._workspace if name.startswith(self._prefix))

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._workspace[self._prefix + name]

    def scratch(self, *shapes: tuple[int, int]) -> list[torch.Tensor]:
        """See Workspace.scratch."""
        return _adjacent(self["scratch"], shapes)


def _adjacent(buffer: torch.Tensor, shapes: Sequence[tuple[int, int]]) -> list[torch.Tensor]:
    flat = buffer.view(-1)
    views, start = [], 0
    for rows, columns in shapes:
        views.append(flat[start : start + rows * columns].view(rows, columns))
        start += rows * columns
    return views
