"""Decode steps captured as graphs: one for each of a ladder of batch sizes, replayed instead of launched op by op.

A decode step launches hundreds of small kernels with the same arguments in every step: all they read and write lies in
the workspace and the pool. So the step is captured once and replayed as a whole. A batch is padded to the next size of
the ladder: rows without a sequence have length 0, slot -1 and a state in block -1, so they read and write no KV.

    ladder   1 2 4 8 16 32 48 ...          batch of 19 -> graph of 32
    slots    s0 s1 ... s18 -1 -1 ... -1    seq_lens  l0 l1 ... l18 0 0 ... 0

The host writes the padding with the step's inputs, and one launch brings both to the device before the replay.

The largest is captured first: the smaller ones then fit in its memory, which all graphs share.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from kvplan_engine.attention.layer_cache import TablePlace
from kvplan_engine.device.allocation import allocating
from kvplan_engine.device.device import Device, Graph
from kvplan_engine.execution.step_tables import metadata_of, padding_values, states_of
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.step_batch import StepBatch

_SMALL_SIZES = (1, 2, 4, 8)
_SIZE_STEP = 16
_LARGEST_SIZE = 512


def ladder_of(max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes to capture: 1, 2, 4, 8, then multiples of 16, and ``max_num_seqs`` itself, at most 512."""
    largest = min(max_num_seqs, _LARGEST_SIZE)
    sizes = {size for size in (*_SMALL_SIZES, *range(_SIZE_STEP, largest + 1, _SIZE_STEP)) if size <= largest}
    return tuple(sorted(sizes | {largest}))


class PaddedBatches:
    """Decode batches of any size over the first rows of the workspace; padding is rows that have no effect."""

    def __init__(
        self, workspace: Workspace, max_num_seqs: int, places: Sequence[TablePlace], state_tables: str | None = None
    ) -> None:
        self._workspace = workspace
        self._state_tables = state_tables
        self._places = tuple(dict.fromkeys(places))
        device = workspace["token_ids"].device
        self._row_numbers = torch.arange(max_num_seqs + 1, dtype=torch.int64, device=device)

    def batch(self, size: int) -> StepBatch:
        """One new token for each of ``size`` sequences, each of which is sampled."""
        space = self._workspace
        seqs = {name: space[name][:size] for name in space} | {"query_starts": space["query_starts"][: size + 1]}
        return StepBatch(
            token_ids=space["token_ids"][:size],
            positions=space["positions"][:size],
            attention={place: metadata_of(place, seqs, seqs, 1) for place in self._places},
            sampled=[],
            sampled_rows=self._row_numbers[:size],
            states=states_of(self._state_tables, seqs, seqs),
        )

    def fill(self, size: int) -> None:
        """Make all rows of a batch of ``size`` padding."""
        for name, value in padding_values(self._places, self._state_tables).items():
            self._workspace[name][:size].fill_(value)
        self._workspace["query_starts"][: size + 1].copy_(self._row_numbers[: size + 1])


@contextmanager
def _without_collections() -> Iterator[None]:
    """No garbage is collected in the block: to destroy a graph or an event while another is captured voids that one."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class DecodeGraphs:
    """The captured decode steps of one workspace and pool. num_bytes: device memory that capturing them took."""

    def __init__(self, device: Device, batches: PaddedBatches, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.num_bytes = 0
        self.num_replays = 0
        self._device = device
        self._batches = batches
        self._graphs: dict[int, Graph] = {}

    def capture(self, step: Callable[[StepBatch], None]) -> None:
        """Capture ``step`` at every size. OutOfDeviceMemory(phase="graph_capture") when the device has no room.

        Each size runs once before, on padding alone, so that libraries choose and load their kernels.
        """
        with allocating("graph_capture"), _without_collections():
            before = self._device.used_bytes()
            memory = self._device.graph_memory()
            for size in reversed(self.sizes):
                batch = self._batches.batch(size)
                self._batches.fill(size)
                step(batch)
                self._graphs[size] = self._device.capture(lambda batch=batch: step(batch), memory)  # type: ignore[misc]
            self.num_bytes = max(0, self._device.used_bytes() - before)

    def size_for(self, num_seqs: int) -> int | None:
        """The smallest captured size that holds ``num_seqs`` sequences; None when there is none."""
        index = bisect_left(self.sizes, num_seqs)
        return self.sizes[index] if index < len(self.sizes) and self._graphs else None

    def replay(self, size: int) -> None:
        """The step whose inputs lie in the workspace, padded to ``size``."""
        self._graphs[size].replay()
        self.num_replays += 1
