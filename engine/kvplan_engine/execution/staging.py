"""What passes between host and device in a step, on an asynchronous device: inputs there, tokens back.

``PendingTokens.wait`` waits for a step. The host may be a step ahead of the device, so host memory that a step fills
exists twice: when the host fills it for step n, the copies of step n - 1 may still be running. Those of step n - 2 are
done as a rule, because the tokens of that step have been read; but a step that samples nobody, such as a piece of a
long prompt, is read by nobody, and then filling it again waits for them (``InTurn``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Rows
from contextlib import contextmanager
from typing import Generic, TypeVar

import numpy as np
import torch

from kvplan_engine.device.device import Device, Mark
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.requests.request import Sequence
from kvplan_engine.requests.step_plan import StepPlan

_NUM_COPIES = 2
# Columns of the block tables that no sequence has reached are not copied where that saves at least this much.
_WORTH_LEAVING_OUT_BYTES = 256 * 1024


Buffers = TypeVar("Buffers")


class InTurn(Generic[Buffers]):
    """Host memory that exists several times and is filled in turn, each once the copies out of it are done."""

    def __init__(self, device: Device, copies: Rows[Buffers]) -> None:
        self._device = device
        self._copies = copies
        self._done: list[Mark | None] = [None] * len(copies)
        self._next = 0

    @contextmanager
    def fill(self) -> Iterator[Buffers]:
        """The memory whose turn it is: the block fills it and queues the copies out of it."""
        turn = self._next
        self._next = (turn + 1) % len(self._copies)
        done = self._done[turn]
        if done is not None:
            done.wait()
        yield self._copies[turn]
        self._done[turn] = self._device.mark()


class InputStage:
    """Copies a step's index buffers to the workspace, through host memory that the device reads without the host.

    block_size: tokens of a block, which tells how many columns of the block tables a step reads.
    """

    def __init__(self, device: Device, workspace: Workspace, names: Rows[str], block_size: int) -> None:
        self.device = device
        self._workspace = workspace
        self._block_size = block_size
        copies = [{name: device.host_buffer(workspace[name]) for name in names} for _ in range(_NUM_COPIES)]
        self._copies = InTurn(device, copies)

    def upload(self, filled: Mapping[str, torch.Tensor], counts: Mapping[str, int]) -> None:
        """Queue copies of the first ``counts[name]`` rows of ``filled[name]``, which may be changed afterwards."""
        with self._copies.fill() as stage:
            for name, count in counts.items():
                source, target, between = filled[name][:count], self._workspace[name][:count], stage[name][:count]
                if name == "block_tables" and "seq_lens" in filled:
                    columns = self._columns_read(filled["seq_lens"][:count], source)
                    source, target = source[:, :columns], target[:, :columns]
                    between = stage[name].view(-1)[: count * columns].view(count, columns)  # contiguous: one copy
                between.copy_(source)
                target.copy_(between, non_blocking=True)

    def _columns_read(self, seq_lens: torch.Tensor, tables: torch.Tensor) -> int:
        """How many columns of ``tables`` to copy: for 128k tokens there are thousands, most of them unused."""
        num_rows, num_columns = tables.shape
        if num_rows * num_columns * tables.itemsize < _WORTH_LEAVING_OUT_BYTES:
            return num_columns
        reached = -(-int(seq_lens.max()) // self._block_size)
        saved_bytes = num_rows * (num_columns - reached) * tables.itemsize
        return reached if saved_bytes >= _WORTH_LEAVING_OUT_BYTES else num_columns


class PendingTokens:
    """A step's tokens, on their way to the host."""

    def __init__(self, buffer: torch.Tensor, mark: Mark) -> None:
        self._buffer = buffer
        self._mark = mark

    def wait(self) -> np.ndarray:
        """The tokens, int64; waits until their step is done. Valid until the step after the next one is started."""
        self._mark.wait()
        array: np.ndarray = self._buffer.numpy()
        return array


class TokenStage:
    """The tokens that the last step chose, where the next step reads them before the host has seen them.

    chosen [max_num_seqs] int64: by row of the last plan's ``sampled``.
    """

    def __init__(self, device: Device, max_num_seqs: int) -> None:
        self.chosen = torch.zeros(max_num_seqs, dtype=torch.int64, device=device.torch_device)
        self._device = device
        self._results = [device.host_buffer(self.chosen) for _ in range(_NUM_COPIES)]
        pairs = torch.zeros(2, max_num_seqs, dtype=torch.int64, device=device.torch_device)
        self._pairs = pairs
        self._host_pairs = InTurn(device, [device.host_buffer(pairs) for _ in range(_NUM_COPIES)])
        self._next = 0

    def send(self, num_tokens: int) -> PendingTokens:
        """Queue the copy of the first ``num_tokens`` of ``chosen`` to the host."""
        self._next = (self._next + 1) % _NUM_COPIES
        buffer = self._results[self._next][:num_tokens]
        buffer.copy_(self.chosen[:num_tokens], non_blocking=True)
        return PendingTokens(buffer, self._device.mark())

    def fill_in(self, token_ids: torch.Tensor, plan: StepPlan, before: StepPlan) -> None:
        """Put the tokens that ``before`` chooses where ``plan``, the one that follows, computes them.

        token_ids [plan.num_tokens]: the step's input, with the tokens whose values are known in place.
        """
        number = len(plan.decodes)
        if not plan.chunks and not plan.fresh_rows:  # row i goes on with the token of row i
            token_ids[:number].copy_(self.chosen[:number])
            return
        targets, sources = _places(plan, before)
        if not targets:
            return
        with self._host_pairs.fill() as host:
            host[:, : len(targets)] = torch.tensor([targets, sources])
            self._pairs.copy_(host, non_blocking=True)
        pairs = self._pairs[:, : len(targets)]
        token_ids.index_copy_(0, pairs[0], self.chosen.index_select(0, pairs[1]))


def _places(plan: StepPlan, before: StepPlan) -> tuple[list[int], list[int]]:
    """For each token of ``plan`` that ``before`` chooses: its place in ``plan``'s input, and its row in ``before``."""
    fresh = set(plan.fresh_rows)
    targets = [row for row in range(len(plan.decodes)) if row not in fresh]
    sources = list(targets)
    newcomers: list[tuple[int, Sequence]] = [(row, plan.decodes[row]) for row in plan.fresh_rows]
    end = len(plan.decodes)
    for item in plan.chunks:
        end += item.num_new_tokens
        if item.needs_sampling:  # it reaches its last token
            newcomers.append((end - 1, item.sequence))
    pending = [(place, sequence) for place, sequence in newcomers if sequence.num_pending_tokens]
    if pending:
        row_of = {sequence: row for row, sequence in enumerate(before.sampled)}
        targets += [place for place, _ in pending]
        sources += [row_of[sequence] for _, sequence in pending]
    return targets, sources
