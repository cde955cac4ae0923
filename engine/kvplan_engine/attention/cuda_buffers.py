"""Memory that only the CUDA attention kernels read and write: results of pieces of work, until they are merged."""

from __future__ import annotations

import torch

from kvplan_engine.kernels.attention_parts import PARTS_BYTES
from kvplan_engine.kernels.cuda.attention.shape import AttentionShape, DecodeLaunch, PrefillLaunch
from kvplan_engine.kernels.cuda.step_memory import StepMemory


class Buffers:
    """The buffers of all layers of one device; they grow, and never shrink.

    partial_sums: float32, room for [decode items, query heads, value size]. partial_stats: float32, room for [decode
    items, query heads, 2]. finished: int32, room for [sequences, decode grid y], all zero between launches. parts:
    float32, what blocks leave of parts of prefill tiles. finished_parts: int32, room for [parts, prefill grid y], all
    zero between launches. What is outgrown stays in ``retired``: a captured graph may still use it.
    """

    def __init__(self, device: torch.device, parts: StepMemory) -> None:
        """parts: the workspace's memory for them; where none is bound to it yet when they are needed, it gets some."""
        self._device = device
        self._parts = parts
        none = torch.empty(0, dtype=torch.float32, device=device)
        self.partial_sums = self.partial_stats = self.parts = none
        self.no_ints = torch.empty(0, dtype=torch.int32, device=device)
        self.finished = self.finished_parts = self.no_ints
        self.retired: list[torch.Tensor] = []

    def grown(self, tensor: torch.Tensor, count: int) -> torch.Tensor:
        """``tensor`` if it has room for ``count`` elements, else a zeroed one that has."""
        if tensor.numel() >= count:
            return tensor
        self.retired.append(tensor)
        return torch.zeros(count, dtype=tensor.dtype, device=tensor.device)

    def reserve_decode(self, shape: AttentionShape, launch: DecodeLaunch, num_items: int, num_sequences: int) -> None:
        """Make room for so many items of decode."""
        rows = num_items * shape.num_query_heads
        self.partial_sums = self.grown(self.partial_sums, rows * shape.value_size)
        self.partial_stats = self.grown(self.partial_stats, rows * 2)
        self.finished = self.grown(self.finished, num_sequences * launch.blocks_per_item)

    def release_parts(self) -> None:
        """Let go of the memory for parts of tiles; it is taken again when it is needed."""
        self.parts = torch.empty(0, dtype=torch.float32, device=self._device)

    def reserve_parts(self, launch: PrefillLaunch) -> int:
        """Take the memory for parts of tiles as it is bound now; how many parts fit it."""
        if not self._parts.is_bound:
            self._parts.bind(torch.empty(PARTS_BYTES, dtype=torch.uint8, device=self._device))
        self.parts = self._parts.vector(torch.float32)
        num_slots = launch.num_slots(self.parts.numel())
        self.finished_parts = self.grown(self.finished_parts, num_slots * launch.blocks_per_item)
        return num_slots
