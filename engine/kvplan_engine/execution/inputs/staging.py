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
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch

from kvplan_engine.device.device import Device, Mark
from kvplan_engine.kernels.arguments import InputRows
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.requests.request import Sequence
from kvplan_engine.requests.step_plan import StepPlan

_NUM_COPIES = 2
_ALIGNMENT_BYTES = 8  # of int64


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


@dataclass(frozen=True, slots=True)
class Extent:
    """What a step fills of an index buffer: its first rows, and of block tables their first columns."""

    rows: int
    columns: int | None = None


class InputStage:
    """Brings a step's index buffers to the device, through host memory that the device reads without the host.

    targets: the buffers on the device, by name. chosen: see Ops.copy_inputs; None where no input refers to it.
    """

    def __init__(
        self, device: Device, ops: Ops, targets: Mapping[str, torch.Tensor], chosen: torch.Tensor | None = None
    ) -> None:
        self.device = device
        self.targets = targets
        self._ops = ops
        self._chosen = chosen
        self._copies = InTurn(device, [_like(targets, device) for _ in range(_NUM_COPIES)])

    def upload(self, filled: Mapping[str, np.ndarray], extents: Mapping[str, Extent]) -> None:
        """Queue the copy of ``extents[name]`` of each ``filled[name]``, which may be changed afterwards.

        With ``chosen`` the first of them is the tokens.
        """
        with self._copies.fill() as stage:
            inputs = []
            for name, extent in extents.items():
                between = stage[name]
                place = slice(extent.rows) if extent.columns is None else (slice(extent.rows), slice(extent.columns))
                between.numpy()[place] = filled[name][place]
                inputs.append(InputRows(between, self.targets[name], extent.rows, extent.columns))
            self._ops.copy_inputs(inputs, self._chosen)


def _like(targets: Mapping[str, torch.Tensor], device: Device) -> dict[str, torch.Tensor]:
    """Contiguous twins of ``targets`` in one piece of host memory, each from a multiple of 8 bytes on."""
    sizes = [-(-each.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for each in targets.values()]
    memory = device.host_buffer(torch.empty(sum(sizes), dtype=torch.uint8))
    pieces = memory.split(sizes)
    return {
        name: piece[: each.nbytes].view(each.dtype).view(each.shape)
        for (name, each), piece in zip(targets.items(), pieces, strict=True)
    }


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


@dataclass(frozen=True, slots=True)
class PendingInputs:
    """Tokens of a step's input that the step before chooses: ``places`` in the input, and what stands there.

    values: references to them (``Ops.copy_inputs``), or the tokens, where the device has chosen them already.
    """

    places: np.ndarray
    values: np.ndarray


class TokenStage:
    """The tokens that the last step chose, where the next step reads them before the host has seen them.

    chosen [max_num_seqs] int64: by row of the last plan's ``sampled``.
    """

    def __init__(self, device: Device, max_num_seqs: int) -> None:
        self.chosen = torch.zeros(max_num_seqs, dtype=torch.int64, device=device.torch_device)
        self._device = device
        self._results = [device.host_buffer(self.chosen) for _ in range(_NUM_COPIES)]
        self._next = 0

    def send(self, num_tokens: int) -> PendingTokens:
        """Queue the copy of the first ``num_tokens`` of ``chosen`` to the host."""
        self._next = (self._next + 1) % _NUM_COPIES
        buffer = self._results[self._next][:num_tokens]
        buffer.copy_(self.chosen[:num_tokens], non_blocking=True)
        return PendingTokens(buffer, self._device.mark())

    def pending(self, plan: StepPlan, before: StepPlan) -> PendingInputs:
        """The tokens of ``plan`` that ``before`` chooses, which it follows."""
        if not plan.chunks and not plan.fresh_rows:  # row i goes on with the token of row i
            places = rows = np.arange(len(plan.decodes))
        else:
            places, rows = (np.array(each, dtype=np.int64) for each in _places(plan, before))
        return PendingInputs(places, -1 - rows if self._device.is_asynchronous else self.chosen.numpy()[rows])


def _places(plan: StepPlan, before: StepPlan) -> tuple[list[int], list[int]]:
    """Place in ``plan``'s input, and row in ``before``, of each token of ``plan`` that ``before`` chooses."""
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
