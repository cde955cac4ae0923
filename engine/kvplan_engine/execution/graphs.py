"""Captured steps, replayed instead of launched operation by operation; which sizes are captured."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from kvplan_engine.attention.layer_cache import TablePlace
from kvplan_engine.device.allocation import allocating
from kvplan_engine.device.device import Device, Graph
from kvplan_engine.execution.inputs.group_tables import metadata_of, padding_values, states_of
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.step_batch import GraphSize, StepBatch

# Which steps are captured: a ladder of batch sizes of decode steps, and one of token counts of steps with prompts.
#
# A step with prompts is worth a graph while launching it takes longer than computing it. Padding costs time in
# proportion
# once a step is bound by computing, from some 300 tokens on (dense models in 16 bits), so its sizes stand close.


_SMALL_SIZES = (1, 2, 4, 8)
_SIZE_STEP = 16
_LARGEST_SIZE = 512
_PROMPT_SIZES = (16, *range(32, 256, 32), *range(256, _LARGEST_SIZE + 1, 64))


def ladder_of(max_num_seqs: int) -> tuple[int, ...]:
    """Sequences of decode steps: 1, 2, 4, 8, then multiples of 16, and ``max_num_seqs`` itself, at most 512."""
    largest = min(max_num_seqs, _LARGEST_SIZE)
    sizes = {size for size in (*_SMALL_SIZES, *range(_SIZE_STEP, largest + 1, _SIZE_STEP)) if size <= largest}
    return tuple(sorted(sizes | {largest}))


def prompt_ladder_of(max_num_batched_tokens: int) -> tuple[int, ...]:
    """Tokens of steps with prompts: 16, multiples of 32 up to 256, of 64 up to 512, and no more than a step has."""
    largest = min(max_num_batched_tokens, _LARGEST_SIZE)
    return tuple(sorted({size for size in _PROMPT_SIZES if size <= largest} | {largest}))


def captured_sizes(max_num_seqs: int, max_num_batched_tokens: int, *, with_prompts: bool) -> tuple[GraphSize, ...]:
    """Both ladders, or that of decode steps alone. max_num_seqs: of one step."""
    sizes = [GraphSize(size, size) for size in ladder_of(max_num_seqs)]
    if with_prompts:
        sizes += [
            GraphSize(size, min(size, max_num_seqs), has_prompts=True)
            for size in prompt_ladder_of(max_num_batched_tokens)
        ]
    return tuple(sizes)


def smallest_size(sizes: Sequence[GraphSize], num_tokens: int, num_seqs: int, *, has_prompts: bool) -> GraphSize | None:
    """The smallest of ``sizes`` that holds a step of so many tokens and sequences; None where none does."""
    of_kind = [size for size in sizes if size.has_prompts == has_prompts]
    index = bisect_left(of_kind, num_tokens, key=lambda size: size.num_tokens)
    fitting = (size for size in of_kind[index:] if size.num_seqs >= num_seqs)
    return next(fitting, None)


# Steps captured as graphs: one for each of a few sizes, replayed instead of launched op by op.
#
# A step launches hundreds of kernels with the same arguments as any other of its size: all they read and write lies in
# the workspace and the pool, and lengths are read from there. So the step is captured once and replayed as a whole. A
# decode step is padded to the next batch size, a step with prompts to the next number of tokens: tokens of no sequence
# have slot -1; sequences without tokens have length 0, a state in block -1, and begin and end where the last one ends.
# So no KV or state is read or written for them, and the last start says how many tokens there are: no more choose
# experts.
#
#     decode          batch of 19 -> graph of 32       with prompts    5 + 20 tokens of 2 -> 32 of 4 at most
#     slots           s0 s1 ... s18 -1 -1 ... -1       slots           s0 ... s24 -1 ... -1
#     seq_lens        l0 l1 ... l18  0  0 ...  0       seq_lens        l0 l1  0  0
#     query_starts     0  1 ...  18 19 19 ... 19       query_starts     0  5 25 25 25
#
# The host writes the padding with the step's inputs, and one launch brings both to the device before the replay.
#
# The largest is captured first: the smaller ones then fit in its memory, which all graphs share.


class PaddedBatches:
    """Batches of any size over the first rows of the workspace; padding is rows that have no effect.

    sampled_rows [max_num_seqs] int64: where steps with prompts say which rows are sampled.
    """

    def __init__(
        self,
        workspace: Workspace,
        places: Sequence[TablePlace],
        sampled_rows: torch.Tensor,
        state_tables: str | None = None,
    ) -> None:
        self._workspace = workspace
        self._state_tables = state_tables
        self._sampled_rows = sampled_rows
        self._places = tuple(dict.fromkeys(places))
        num_seqs = len(workspace["query_starts"]) - 1
        self._row_numbers = torch.arange(num_seqs, dtype=torch.int64, device=workspace["token_ids"].device)

    def batch(self, size: GraphSize) -> StepBatch:
        """The rows that a step of ``size`` reads."""
        tokens, seqs = self._rows(size.num_tokens), self._rows(size.num_seqs)
        most = size.num_tokens if size.has_prompts else 1
        return StepBatch(
            token_ids=tokens["token_ids"],
            positions=tokens["positions"],
            attention={place: metadata_of(place, tokens, seqs, most) for place in self._places},
            sampled=[],
            sampled_rows=(self._sampled_rows if size.has_prompts else self._row_numbers)[: size.num_seqs],
            states=states_of(self._state_tables, tokens, seqs),
            graph=size,
            num_filled=self._workspace["query_starts"][size.num_seqs : size.num_seqs + 1],
        )

    def _rows(self, number: int) -> dict[str, torch.Tensor]:
        space = self._workspace
        return {name: space[name][:number] for name in space} | {"query_starts": space["query_starts"][: number + 1]}

    def fill(self, size: GraphSize) -> None:
        """Make all rows of a step of ``size`` padding."""
        for name, value in padding_values(self._places, self._state_tables).items():
            self._workspace[name][: size.num_tokens].fill_(value)
        self._workspace["query_starts"][: size.num_seqs + 1].fill_(0)
        self._sampled_rows[: size.num_seqs].fill_(0)


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


class StepGraphs:
    """The captured steps of one workspace and pool. num_bytes: device memory that capturing them took."""

    def __init__(self, device: Device, batches: PaddedBatches, sizes: Sequence[GraphSize]) -> None:
        self.sizes = sizes
        self.num_bytes = 0
        self.num_replays = 0
        self._device = device
        self._batches = batches
        self._graphs: dict[GraphSize, Graph] = {}

    def capture(self, step: Callable[[StepBatch], None]) -> None:
        """Capture ``step`` at every size. OutOfDeviceMemory(phase="graph_capture") when the device has no room.

        Each size runs once before, on padding alone, so that libraries choose and load their kernels.
        """
        with allocating("graph_capture"), _without_collections():
            before = self._device.used_bytes()
            memory = self._device.graph_memory()
            for size in sorted(self.sizes, key=lambda each: each.num_tokens, reverse=True):
                batch = self._batches.batch(size)
                self._batches.fill(size)
                step(batch)
                self._graphs[size] = self._device.capture(lambda batch=batch: step(batch), memory)  # type: ignore[misc]
            self.num_bytes = max(0, self._device.used_bytes() - before)

    def size_for(self, num_tokens: int, num_seqs: int, *, has_prompts: bool) -> GraphSize | None:
        """The smallest captured step that holds one of so many tokens and sequences; None when there is none."""
        return smallest_size(self.sizes, num_tokens, num_seqs, has_prompts=has_prompts) if self._graphs else None

    def replay(self, size: GraphSize) -> None:
        """The step whose inputs lie in the workspace, padded to ``size``."""
        self._graphs[size].replay()
        self.num_replays += 1
